"""Positions to cosines and sines, exact at every position."""

from collections.abc import Sequence
from typing import Any, cast, override

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.raise_op import Assert

from pytensor_rope.base import BroadcastingLayerOp, Tensor, computation_dtype, pinned
from pytensor_rope.frequencies import inverse_frequencies, turns


class Angles(BroadcastingLayerOp):
    r"""
    The cosine and sine of every rotation angle.

    Inputs are ``position_ids (..., seq)`` and, where ``rotary_dim`` is None, a tensor whose last axis has
    the rotary dimension. Outputs are cos and sin, ``(..., seq, rotary_dim // 2)``, in ``dtype``.

    For integer positions the angle is counted in turns, in fixed point. With
    :math:`f = \mathrm{round}(\theta\, 2^{64} / 2\pi)` the phase :math:`p f \bmod 2^{64}` is the exact
    fraction of a turn, so no position is too far out: float32 angles are as good at position
    :math:`2^{31}` as at 1. Float positions take the plain product, in float32 or wider.
    """

    __props__ = ("rotary_dim", "base", "scaling", "scaling_factor", "dtype")

    rotary_dim: int | None
    base: float
    scaling: str
    scaling_factor: float
    dtype: str

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        position_ids = inputs[0]
        if self.rotary_dim is None:
            d = inputs[1].type.shape[-1]
            if d is None:
                return _cos_sin(self._symbolic_product(*inputs), self.dtype)
        else:
            d = self.rotary_dim
        if position_ids.dtype.startswith("float"):
            return _cos_sin(self._product(position_ids, d), self.dtype)
        if self.dtype == "float64":
            return self._exact_float64(position_ids, d)
        return self._exact_float32(position_ids, d)

    def _exact_float32(self, position_ids: Tensor, d: int) -> list[Tensor]:
        """Take the phase in uint32 words, which wrap alike on every linker, float64 or not."""
        f = self.turns_of(d, bits=64)
        f_hi = np.array([word >> 32 for word in f], dtype="uint32")
        f_lo = np.array([word & 0xFFFFFFFF for word in f], dtype="uint32")
        negative, magnitude = _sign_magnitude(position_ids)
        p = magnitude.astype("uint32")[..., None]
        phase = p * f_hi + _mul_hi(p, f_lo)
        if position_ids.dtype in ("int64", "uint64"):
            half = pinned(2**16, magnitude.dtype)
            p_hi = (magnitude // half // half).astype("uint32")[..., None]
            phase = phase + p_hi * f_lo
        # Half a turn is taken off beyond a quarter, where float32 would hold the angle less finely.
        quarter, half_turn = pinned(2**30, "uint32"), pinned(2**31, "uint32")
        folds = (phase + quarter) // half_turn
        folded = (phase - folds * half_turn).astype("int32").astype("float32")
        angle = folded * pinned(2 * np.pi / 2**32, "float32")
        sign = pinned(1, "float32") - pinned(2, "float32") * folds.astype("float32")
        return [
            pt.cos(angle) * sign,
            pt.sin(angle) * sign * _direction(negative, "float32"),
        ]

    def _exact_float64(self, position_ids: Tensor, d: int) -> list[Tensor]:
        """Take the phase in one uint64 word, with 24 bits more of the frequency below it."""
        f = self.turns_of(d, bits=88)
        f_hi = np.array([word >> 24 for word in f], dtype="uint64")
        f_lo = np.array([word & 0xFFFFFF for word in f], dtype="uint64")
        negative, magnitude = _sign_magnitude(position_ids)
        p = magnitude.astype("uint64")[..., None]
        phase = p * f_hi + (p * f_lo) // pinned(2**24, "uint64")
        angle = phase.astype("int64").astype("float64") * pinned(2 * np.pi / 2**64, "float64")
        return [pt.cos(angle), pt.sin(angle) * _direction(negative, "float64")]

    def _product(self, position_ids: Tensor, d: int) -> Tensor:
        theta = inverse_frequencies(d, **self._scheme())
        dtype = self._product_dtype(position_ids)
        product: Tensor = position_ids.astype(dtype)[..., None] * theta.astype(dtype)
        return product

    def _symbolic_product(self, position_ids: Tensor, x: Tensor) -> Tensor:
        """Take the plain product in float64, for frequencies that no fixed point can be folded from."""
        even = Assert("The last axis must be even to be rotated in pairs; pass rotary_dim.")
        d = cast(Tensor, even(x.shape[-1], pt.eq(x.shape[-1] % 2, 0))).astype("float64")
        base = pinned(self.base, "float64")
        if self.scaling == "ntk":
            base = base * pinned(self.scaling_factor, "float64") ** (d / (d - 2.0))
        stretch = self.scaling_factor if self.scaling == "linear" else 1.0
        theta = base ** (-pt.arange(0, d, 2, dtype="float64") / d) / pinned(stretch, "float64")
        product: Tensor = position_ids.astype("float64")[..., None] * theta
        return product

    def _product_dtype(self, position_ids: Tensor) -> str:
        wide = "float64" in (position_ids.dtype, self.dtype)
        return "float64" if wide else "float32"

    def _scheme(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "scaling": self.scaling,
            "scaling_factor": self.scaling_factor,
        }

    def turns_of(self, d: int, bits: int) -> list[int]:
        """Return the frequencies in turns a position, as fractions of ``2**bits``."""
        return turns(d, self.base, self.scaling, self.scaling_factor, bits=bits)

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        d = shapes[1][-1] if self.rotary_dim is None else self.rotary_dim
        return [(*shapes[0], d // 2)] * 2

    @override
    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        continuous = node.inputs[0].type.dtype.startswith("float")
        return [[continuous, continuous], *([False, False] for _ in node.inputs[1:])]

    @override
    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        if inputs[0].dtype.startswith("float"):
            return super().pullback(inputs, outputs, cotangents)
        return [disconnected_type() for _ in inputs]


def angles(
    position_ids: Tensor,
    rotary_dim: int | None,
    *,
    dtype: str,
    like: Tensor | None,
    base: float,
    scaling: str,
    scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """
    Return cos and sin of the rotation angles at ``position_ids``, for inputs of ``dtype``.

    Where ``rotary_dim`` is None it is the size of ``like``'s last axis, not known before it runs.
    """
    op = Angles(
        rotary_dim=rotary_dim,
        base=base,
        scaling=scaling,
        scaling_factor=scaling_factor,
        dtype=computation_dtype(dtype),
    )
    cos, sin = op(position_ids) if rotary_dim is not None else op(position_ids, like)
    return cos, sin


def _cos_sin(angle: Tensor, dtype: str) -> list[Tensor]:
    if angle.dtype == "float64":
        # MLX takes the sine of a float64 in float32, where a large angle would be lost.
        turn = pinned(2 * np.pi, "float64")
        angle = angle - turn * pt.floor(angle / turn + pinned(0.5, "float64"))
    return [pt.cos(angle).astype(dtype), pt.sin(angle).astype(dtype)]


def _sign_magnitude(position_ids: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return whether each position is negative (None where none can be) and its unsigned magnitude."""
    if position_ids.dtype in ("uint32", "uint64"):
        return None, position_ids
    wide = position_ids if position_ids.dtype == "int64" else position_ids.astype("int32")
    negative = pt.lt(wide, pinned(0, wide.dtype))
    # In two's complement: the least integer has no absolute value in its own dtype.
    unsigned = wide.astype(f"u{wide.dtype}")
    return negative, pt.where(negative, pt.invert(unsigned) + pinned(1, unsigned.dtype), unsigned)


def _direction(negative: Tensor | None, dtype: str) -> Tensor | np.ndarray:
    """Return -1 where the position is negative and 1 elsewhere: sine is odd."""
    if negative is None:
        return pinned(1, dtype)
    direction: Tensor = pinned(1, dtype) - pinned(2, dtype) * negative.astype(dtype)[..., None]
    return direction


def _mul_hi(a: Tensor, b: np.ndarray) -> Tensor:
    """Return the high word of the 64-bit product of two uint32, by 16-bit products that can't overflow."""
    half, mask = pinned(2**16, "uint32"), pinned(2**16 - 1, "uint32")
    a_lo, a_hi = a & mask, a // half
    b_lo, b_hi = b & mask, b // half
    low = a_hi * b_lo + (a_lo * b_lo) // half
    mid = a_lo * b_hi + (low & mask)
    high: Tensor = a_hi * b_hi + low // half + mid // half
    return high
