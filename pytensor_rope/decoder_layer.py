"""One layer of a decoder, as one op."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, cast, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pytensor_rope.activations import ACTIVATIONS
from pytensor_rope.attention import sink_attention
from pytensor_rope.base import LayerOp, Tensor, pinned, sizes
from pytensor_rope.layer_norm import layer_norm
from pytensor_rope.norm import rms_norm
from pytensor_rope.rotate import rotate

_N_ANGLES = 6


class DecoderLayer(LayerOp):
    """
    One decoder layer: attention and a feed-forward network, each normalised and added to what came in.

    As one op it is compiled once on C and Numba, not once for each layer of a model. Inputs are the
    hidden states ``(batch, seq, hidden_size)``; the weights that ``weights`` names; unless ``rotary_dim`` is
    0, cos and sin of the queries' angles, of those that queries see the sinks from and of the keys',
    ``(batch, 1, seq, rotary_dim // 2)``; the positions ``(batch, seq)``; and with a cache its keys, rotated,
    its values and its slot positions. Outputs are the new hidden states and the chunk's keys and values, to
    be put into the cache, in its dtype: the keys rotated where ``caches_rotated_keys``. They are attended to
    as the cache keeps them, so that it makes no difference which tokens of a text are read as one chunk.

    What the layer is made of follows from its weights: a norm, a bias or a gate that is not among them is
    left out. The other props are the fields of :class:`DecoderConfig` of the same names.
    """

    __props__ = (
        "weights",
        "n_head",
        "n_kv_head",
        "norm",
        "unit_offset",
        "epsilon",
        "residual",
        "residual_scale",
        "activation",
        "pairing",
        "rotary_dim",
        "caches_rotated_keys",
        "scale",
        "softcap",
        "sinks",
        "window",
    )

    weights: tuple[str, ...]
    n_head: int
    n_kv_head: int
    norm: str
    unit_offset: bool
    epsilon: float
    residual: str
    residual_scale: float
    activation: str
    pairing: str
    rotary_dim: int
    caches_rotated_keys: bool
    scale: float
    softcap: float | None
    sinks: int
    window: int | None

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        x, *rest = inputs
        n_weight, n_angle = len(self.weights), _N_ANGLES if self.rotary_dim else 0
        weights = dict(zip(self.weights, rest[:n_weight], strict=True))
        angles, (positions, *cache) = rest[n_weight : n_weight + n_angle], rest[n_weight + n_angle :]

        attended, k, v = self._attention(
            self._normalized(x, weights, "attention_norm"), weights, angles, positions, cache
        )
        added = x + self._scaled(self._normalized(attended, weights, "attention_output_norm"))
        if self.residual == "sequential":
            h = self._feed_forward(self._normalized(added, weights, "feed_forward_norm"), weights)
        else:
            norm = "feed_forward_norm" if "feed_forward_norm" in weights else "attention_norm"
            h = self._feed_forward(self._normalized(x, weights, norm), weights)
        return [added + self._scaled(self._normalized(h, weights, "feed_forward_output_norm")), k, v]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        batch, seq, _ = shapes[0]
        head_dim = node.outputs[1].type.shape[-1]
        rows = (batch, pt.constant(self.n_kv_head), seq, pt.constant(head_dim))
        return [shapes[0], rows, rows]

    def _attention(
        self,
        h: Tensor,
        weights: dict[str, Tensor],
        angles: Sequence[Tensor],
        positions: Tensor,
        cache: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the attention adds, and the keys and values as the cache keeps them."""
        counts = (self.n_head, self.n_kv_head, self.n_kv_head)
        names = ("query", "key", "value")
        projected = _projections(h, weights, "query_key_value", names, counts)
        q, k, v = (
            self._heads(x, weights, f"{name}_norm", n_head)
            for x, name, n_head in zip(projected, names, counts, strict=True)
        )
        dtype = cache[0].dtype if cache else h.dtype
        if angles:
            query, sink_query, turned = (
                self._rotate(rows, *angles[i : i + 2]) for rows, i in ((q, 0), (q, 2), (k, 4))
            )
        else:
            query, sink_query, turned = q, q, k
        k, turned, v = (rows.astype(dtype) for rows in (k, turned, v))
        attended = sink_attention(
            query,
            sink_query,
            turned.astype(h.dtype),
            v.astype(h.dtype),
            positions,
            *(rows.astype(h.dtype) for rows in cache[:2]),
            *cache[2:],
            sinks=self.sinks,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
        )
        out = project(_join_heads(attended), weights["output"], weights.get("output_bias"))
        return out, turned if self.caches_rotated_keys else k, v

    def _feed_forward(self, h: Tensor, weights: dict[str, Tensor]) -> Tensor:
        activation = ACTIVATIONS[self.activation]
        if "gate" in weights or "gate_up" in weights:
            gate, up = _projections(h, weights, "gate_up", ("gate", "up"), (1, 1))
            inner = activation(gate) * up
        else:
            inner = activation(project(h, weights["up"], weights.get("up_bias")))
        return project(inner, weights["down"], weights.get("down_bias"))

    def _heads(self, projected: Tensor, weights: dict[str, Tensor], norm: str, n_head: int) -> Tensor:
        """Return queries, keys or values, ``(batch, n_head, seq, head_dim)``, normalised if so asked."""
        head_dim = projected.type.shape[-1] // n_head
        if norm not in weights:
            return _split_heads(projected, n_head)
        shape = weights[norm].type.shape
        if shape == (n_head * head_dim,) and n_head > 1:
            return _split_heads(self._normalized(projected, weights, norm), n_head)
        heads = _split_heads(projected, n_head)
        if len(shape) == 1:
            return self._normalized(heads, weights, norm)
        own = {key: weights[key][:, None] for key in (norm, f"{norm}_bias") if key in weights}
        return self._normalized(heads, own, norm)

    def _normalized(self, x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
        """Return ``x`` normalised with the weights of one name, as it is where there are none."""
        if name not in weights:
            return x
        return normalized(
            x,
            weights[name],
            weights.get(f"{name}_bias"),
            norm=self.norm,
            epsilon=self.epsilon,
            unit_offset=self.unit_offset,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.residual_scale == 1 else cast(Tensor, x * pinned(self.residual_scale, x.dtype))

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, sin, pairing=self.pairing, rotary_dim=self.rotary_dim)


def normalized(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, norm: str, epsilon: float, unit_offset: bool
) -> Tensor:
    """Return ``x`` normalised over its last axis; a weight may have more axes than that."""
    if norm == "layer":
        return layer_norm(x, weight, bias, epsilon=epsilon)
    if weight.ndim > 1:
        scaled = rms_norm(x, epsilon=epsilon) * (weight + pinned(1, weight.dtype) if unit_offset else weight)
    else:
        scaled = rms_norm(x, weight, epsilon=epsilon, unit_offset=unit_offset)
    return scaled if bias is None else cast(Tensor, scaled + bias)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply the last axis with ``weight``, as one product of two matrices, and add ``bias``."""
    *leading, n_in = sizes(x)
    rows = x.reshape((-1, n_in)) @ weight
    if bias is not None:
        rows = rows + bias
    return cast(Tensor, rows.reshape((*leading, weight.type.shape[1])))


def _projections(
    h: Tensor, weights: dict[str, Tensor], joined_name: str, names: Sequence[str], parts: Sequence[int]
) -> list[Tensor]:
    """Return projections of ``h``, whose widths are as ``parts``, by one product if they are joined."""
    if joined_name not in weights:
        return [project(h, weights[name], weights.get(f"{name}_bias")) for name in names]
    joined = project(h, weights[joined_name], weights.get(f"{joined_name}_bias"))
    unit = joined.type.shape[-1] // sum(parts)
    ends = [unit * end for end in accumulate(parts)]
    return [joined[..., start:end] for start, end in pairwise([0, *ends])]


def _split_heads(x: Tensor, n_head: int) -> Tensor:
    """Turn ``(batch, seq, n_head * head_dim)`` into ``(batch, n_head, seq, head_dim)``."""
    batch, seq, width = sizes(x)
    return cast(Tensor, x.reshape((batch, seq, n_head, width // n_head)).transpose(0, 2, 1, 3))


def _join_heads(x: Tensor) -> Tensor:
    """Undo :func:`_split_heads`."""
    batch, n_head, seq, head_dim = sizes(x)
    return cast(Tensor, x.transpose(0, 2, 1, 3).reshape((batch, seq, n_head * head_dim)))
