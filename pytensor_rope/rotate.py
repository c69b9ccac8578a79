"""The rotation of pairs by given angles."""

from collections.abc import Sequence
from typing import Any, cast, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pytensor_rope.base import BroadcastingLayerOp, Tensor, computation_dtype, sizes

PAIRINGS = ("half", "adjacent")


class Rotate(BroadcastingLayerOp):
    """
    Rotate pairs of the last axis of ``x`` by angles given as ``cos`` and ``sin``.

    Inputs are ``x (..., seq, head_dim)`` and cos and sin ``(..., seq, rotary_dim // 2)``, which broadcast
    over the leading axes. What lies beyond the rotary dimension passes through unchanged.
    """

    __props__ = ("pairing", "rotary_dim")

    pairing: str
    rotary_dim: int | None

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        x, cos, sin = inputs
        check_sequence(x.type.shape[-2], cos.type.shape[-2])
        d = self._rotated(x)
        check_batch(x.type.shape[:-2], cos.type.shape[:-2])
        head_dim = x.type.shape[-1]
        if isinstance(d, int) and head_dim is not None:
            check_pairs(d, head_dim)
        dtype = computation_dtype(x.dtype)
        first, second = (half.astype(dtype) for half in self._pairs(x, d))
        cos, sin = cos.astype(dtype), sin.astype(dtype)
        rotated = [first * cos - second * sin, second * cos + first * sin]
        parts = self._lay_out([half.astype(x.dtype) for half in rotated])
        if isinstance(d, int) and d != x.type.shape[-1]:
            parts.append(x[..., d:])
        return [pt.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]

    def _rotated(self, x: Tensor) -> int | Tensor:
        """Return how many of the last axis's dimensions are rotated."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        head_dim: int | None = x.type.shape[-1]
        return x.shape[-1] if head_dim is None else head_dim

    def _pairs(self, x: Tensor, d: int | Tensor) -> tuple[Tensor, Tensor]:
        if self.pairing == "half":
            return x[..., : d // 2], x[..., d // 2 : d]
        if isinstance(d, int):
            return x[..., 0:d:2], x[..., 1:d:2]
        return x[..., 0::2], x[..., 1::2]

    def _lay_out(self, halves: list[Tensor]) -> list[Tensor]:
        """Put the rotated pairs back where they came from, as parts to be joined."""
        if self.pairing == "half":
            return halves
        *leading, n_pair = sizes(halves[0])
        return [pt.stack(halves, axis=-1).reshape((*leading, 2 * n_pair))]

    @override
    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Turn the cotangent back by the same angle; the angles' own gradient is taken pair by pair."""
        x, cos, sin = inputs
        (g,) = cotangents
        d = self._rotated(x)
        x1, x2 = (half.astype(cos.dtype) for half in self._pairs(x, d))
        g1, g2 = (half.astype(cos.dtype) for half in self._pairs(g, d))
        return [
            _sum_to(
                rotate(g, cos, -sin, pairing=self.pairing, rotary_dim=self.rotary_dim),
                x,
            ),
            _sum_to(g1 * x1 + g2 * x2, cos),
            _sum_to(g2 * x1 - g1 * x2, sin),
        ]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: str, rotary_dim: int | None = None) -> Tensor:
    """Rotate ``x`` by the angles whose cosines and sines are given; see :class:`Rotate`."""
    return cast(Tensor, Rotate(pairing=pairing, rotary_dim=rotary_dim)(x, cos, sin))


def check_angles(rotary_dim: int, cos: tuple[int, ...], sin: tuple[int, ...]) -> None:
    """Refuse shapes of angles that are not one for each pair."""
    if rotary_dim % 2 or tuple(cos) != tuple(sin) or cos[-1] != rotary_dim // 2:
        raise ValueError(
            f"To rotate {rotary_dim} dimensions, their number must be even and the angles half of it; got "
            f"angles of {tuple(cos)} and {tuple(sin)}."
        )


def check_pairs(rotary_dim: int, head_dim: int) -> None:
    """Refuse to rotate more dimensions than there are."""
    if rotary_dim > head_dim:
        raise ValueError(f"rotary_dim={rotary_dim} is larger than x's last axis, {head_dim}.")


def check_batch(batch: tuple[int | None, ...], of_positions: tuple[int | None, ...]) -> None:
    """Refuse batch axes of positions that don't broadcast against those of what is rotated."""
    for size, given in zip(batch[::-1], of_positions[::-1], strict=False):
        if None not in (size, given) and given not in (1, size):
            raise ValueError(
                f"position_ids has batch axes {of_positions}, but x has {batch}: they don't match."
            )


def check_sequence(seq: int | None, n_position: int | None) -> None:
    """Refuse a number of positions that is not that of the tokens."""
    if None not in (seq, n_position) and seq != n_position:
        raise ValueError(
            f"x has {seq} tokens along its sequence axis, but position_ids has {n_position}. Give one "
            f"position a token."
        )


def _sum_to(x: Tensor, like: Tensor) -> Tensor:
    """Sum ``x`` over the axes along which ``like`` was broadcast, in ``like``'s dtype."""
    surplus = x.ndim - like.ndim
    kept = [
        axis + surplus
        for axis, size in enumerate(like.type.shape)
        if size == 1 and x.type.shape[axis + surplus] != 1
    ]
    if kept:
        x = x.sum(axis=kept, keepdims=True, dtype=x.dtype, acc_dtype=x.dtype)
    if surplus:
        x = x.sum(axis=tuple(range(surplus)), dtype=x.dtype, acc_dtype=x.dtype)
    return cast(Tensor, x.astype(like.dtype))
