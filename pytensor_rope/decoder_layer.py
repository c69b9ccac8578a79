"""One layer of a Llama-family decoder, as one op."""

from collections.abc import Sequence
from typing import Any, cast, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pytensor_rope.attention import sink_attention
from pytensor_rope.base import LayerOp, Tensor, sizes
from pytensor_rope.norm import rms_norm
from pytensor_rope.rotate import rotate

LAYER_WEIGHTS = (
    "attention_norm",
    "query",
    "key",
    "value",
    "output",
    "feed_forward_norm",
    "gate",
    "up",
    "down",
)


class DecoderLayer(LayerOp):
    """
    One decoder layer: attention and a gated feed-forward network, each normalised first and added back.

    As one op it is compiled once on C and Numba, not once for each layer of a model. Inputs are the
    hidden states ``(batch, seq, hidden_size)``, the weights in the order of ``LAYER_WEIGHTS``, cos and sin
    of the queries' angles, of those that queries see the sinks from and of the keys', ``(batch, 1, seq,
    rotary_dim // 2)``, the positions ``(batch, seq)``, and with a cache its keys, rotated, its values and its
    slot positions. Outputs are the new hidden states and the chunk's keys and values, to be put into the
    cache, in its dtype: the keys rotated where ``caches_rotated_keys``. They are attended to as the cache
    keeps them, so that it makes no difference which tokens of a text are read as one chunk.
    """

    __props__ = (
        "n_head",
        "n_kv_head",
        "epsilon",
        "pairing",
        "rotary_dim",
        "caches_rotated_keys",
        "scale",
        "sinks",
        "window",
    )

    n_head: int
    n_kv_head: int
    epsilon: float
    pairing: str
    rotary_dim: int
    caches_rotated_keys: bool
    scale: float
    sinks: int
    window: int | None

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        x, *rest = inputs
        weights = dict(zip(LAYER_WEIGHTS, rest, strict=False))
        *angles, positions = rest[len(LAYER_WEIGHTS) : len(LAYER_WEIGHTS) + 7]
        query, sink_query, key = angles[:2], angles[2:4], angles[4:]
        cache = rest[len(LAYER_WEIGHTS) + 7 :]

        h = rms_norm(x, weights["attention_norm"], epsilon=self.epsilon)
        q = _split_heads(project(h, weights["query"]), self.n_head)
        k = _split_heads(project(h, weights["key"]), self.n_kv_head)
        v = _split_heads(project(h, weights["value"]), self.n_kv_head)
        dtype = cache[0].dtype if cache else x.dtype
        k, turned, v = (rows.astype(dtype) for rows in (k, self._rotate(k, *key), v))
        attended = sink_attention(
            self._rotate(q, *query),
            self._rotate(q, *sink_query),
            turned.astype(x.dtype),
            v.astype(x.dtype),
            positions,
            *(rows.astype(x.dtype) for rows in cache[:2]),
            *cache[2:],
            sinks=self.sinks,
            window=self.window,
            scale=self.scale,
        )
        x = x + project(_join_heads(attended), weights["output"])

        h = rms_norm(x, weights["feed_forward_norm"], epsilon=self.epsilon)
        gate, up = project(h, weights["gate"]), project(h, weights["up"])
        x = x + project(gate * pt.sigmoid(gate) * up, weights["down"])
        return [x, turned if self.caches_rotated_keys else k, v]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        batch, seq, _ = shapes[0]
        head_dim = node.outputs[1].type.shape[-1]
        rows = (batch, pt.constant(self.n_kv_head), seq, pt.constant(head_dim))
        return [shapes[0], rows, rows]

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, sin, pairing=self.pairing, rotary_dim=self.rotary_dim)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply the last axis with ``weight``, as one product of two matrices."""
    *leading, n_in = sizes(x)
    rows = x.reshape((-1, n_in)) @ weight
    return cast(Tensor, rows.reshape((*leading, weight.type.shape[1])))


def _split_heads(x: Tensor, n_head: int) -> Tensor:
    """Turn ``(batch, seq, n_head * head_dim)`` into ``(batch, n_head, seq, head_dim)``."""
    batch, seq, width = sizes(x)
    return cast(Tensor, x.reshape((batch, seq, n_head, width // n_head)).transpose(0, 2, 1, 3))


def _join_heads(x: Tensor) -> Tensor:
    """Undo :func:`_split_heads`."""
    batch, n_head, seq, head_dim = sizes(x)
    return cast(Tensor, x.transpose(0, 2, 1, 3).reshape((batch, seq, n_head * head_dim)))
