"""Positions to cosines and sines, exact at every position."""

from collections.abc import Sequence
from typing import Any, cast, override

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.raise_op import Assert

from pytensor_rope.base import BroadcastingLayerOp, Tensor, computation_dtype, pinned, sizes
from pytensor_rope.frequencies import (
    NTK,
    Default,
    DynamicNTK,
    FrequencyScheme,
    LengthDependent,
    Linear,
    scheme_from_plain,
    turns,
)

# Schemes whose frequencies can also be taken of a rotary dimension that is not known before it runs.
SYMBOLIC_SCHEMES = (Default, Linear, NTK)

type Words = tuple[np.ndarray, np.ndarray] | tuple[Tensor, Tensor]


class Angles(BroadcastingLayerOp):
    r"""
    The cosine and sine of every rotation angle, for frequencies that are the same at every length.

    Inputs are ``position_ids (..., seq)`` and, where ``rotary_dim`` is None, a tensor whose last axis has
    the rotary dimension. Outputs are cos and sin, ``(..., seq, rotary_dim // 2)``, in ``dtype``.

    For integer positions the angle is counted in turns, in fixed point. With
    :math:`f = \mathrm{round}(\theta\, 2^{64} / 2\pi)` the phase :math:`p f \bmod 2^{64}` is the exact
    fraction of a turn, so no position is too far out: float32 angles are as good at position
    :math:`2^{36}` as at 1, and so are float64 angles. Float positions, and all where ``exact`` is False,
    take the plain product, in float32 or wider. ``scaling`` is a frequency scheme as
    :meth:`FrequencyScheme.plain` gives it.
    """

    __props__ = ("rotary_dim", "base", "scaling", "exact", "dtype")

    rotary_dim: int | None
    base: float
    scaling: tuple[Any, ...]
    exact: bool
    dtype: str

    @property
    def scheme(self) -> FrequencyScheme:
        """The frequency scheme."""
        return scheme_from_plain(self.scaling)

    def counts_turns(self, position_dtype: str) -> bool:
        """Return whether the angles of such positions are counted in turns, in fixed point."""
        return self.exact and not position_dtype.startswith("float")

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        position_ids = inputs[0]
        d = inputs[1].type.shape[-1] if self.rotary_dim is None else self.rotary_dim
        if d is None:
            return _cos_sin(self._symbolic_product(*inputs), self.dtype)
        if not self.counts_turns(position_ids.dtype):
            theta = self.scheme.inverse_frequencies(d, base=self.base)
            return _cos_sin(_product(position_ids, theta, self.dtype), self.dtype)
        return _cos_sin_of_words(position_ids, self._words(d), self.dtype)

    def _words(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the frequencies in turns, as a high and a low word each."""
        low_bits, dtype = (24, "uint64") if self.dtype == "float64" else (32, "uint32")
        f = self.turns_of(d, bits=88 if self.dtype == "float64" else 64)
        hi = np.array([word >> low_bits for word in f], dtype=dtype)
        lo = np.array([word & (2**low_bits - 1) for word in f], dtype=dtype)
        return hi, lo

    def _symbolic_product(self, position_ids: Tensor, x: Tensor) -> Tensor:
        """Take the plain product in float64, for frequencies that no fixed point can be folded from."""
        even = Assert("The last axis must be even to be rotated in pairs; pass rotary_dim.")
        d = cast(Tensor, even(x.shape[-1], pt.eq(x.shape[-1] % 2, 0))).astype("float64")
        base, stretch = pinned(self.base, "float64"), pinned(1.0, "float64")
        scheme = self.scheme
        if isinstance(scheme, NTK):
            base = base * pinned(scheme.factor, "float64") ** (d / (d - 2.0))
        elif isinstance(scheme, Linear):
            stretch = pinned(scheme.factor, "float64")
        theta = base ** (-pt.arange(0, d, 2, dtype="float64") / d) / stretch
        product: Tensor = position_ids.astype("float64")[..., None] * theta
        return product

    def turns_of(self, d: int, bits: int) -> list[int]:
        """Return the frequencies in turns a position, as fractions of ``2**bits``."""
        return turns(self.scheme, d, self.base, bits=bits)

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
    like: Tensor | None = None,
    base: float = 10_000.0,
    scheme: FrequencyScheme,
    exact: bool = True,
    of: str = "queries",
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Return cos and sin of the rotation angles at ``position_ids``, for inputs of ``dtype``.

    Where ``rotary_dim`` is None it is the size of ``like``'s last axis, not known before it runs. A scheme of
    several axes takes ``position_ids`` with a leading axis for them; one that depends on the length takes
    ``length (...)``, by default one more than the last position of each row. What the scheme multiplies
    rotated queries or keys (``of``) with is in cos and sin.
    """
    dtype = computation_dtype(dtype)

    def of_static(static: FrequencyScheme) -> tuple[Tensor, Tensor]:
        op = Angles(rotary_dim=rotary_dim, base=base, scaling=static.plain(), exact=exact, dtype=dtype)
        cos, sin = op(position_ids) if rotary_dim is not None else op(position_ids, like)
        return cos, sin

    if rotary_dim is None:
        return of_static(scheme)
    if isinstance(scheme, LengthDependent):
        length = _row_length(position_ids) if length is None else length
        original = scheme.original_max_position_embeddings
        if isinstance(scheme, DynamicNTK):
            far = _ntk_at(scheme, length, position_ids, rotary_dim, base, dtype, exact)
        else:
            far = of_static(scheme.at(original + 1))
        near = of_static(scheme.at(original))
        is_longer = pt.gt(length, pinned(original, length.dtype))[..., None, None]
        cos, sin = (pt.where(is_longer, *both) for both in zip(far, near, strict=True))
    else:
        cos, sin = of_static(scheme)
    if scheme.n_axis > 1:
        axes = np.array(scheme.axes(rotary_dim))
        cos, sin = _choose_axes(cos, axes), _choose_axes(sin, axes)
    factor = _factor(scheme, position_ids, rotary_dim, dtype, of)
    return (cos, sin) if factor is None else (cos * factor, sin * factor)


def _factor(
    scheme: FrequencyScheme, position_ids: Tensor, rotary_dim: int, dtype: str, of: str
) -> Tensor | np.ndarray | None:
    """Return what the scheme multiplies rotated queries or keys with, None for 1."""
    log_decay = scheme.log_decay(rotary_dim)
    if log_decay is not None:
        towards = log_decay if of == "queries" else -log_decay
        return cast(Tensor, _exp(_widened(position_ids, "float64")[..., None] * towards).astype(dtype))
    return None if scheme.attention_scaling == 1 else pinned(scheme.attention_scaling, dtype)


class Widen(BroadcastingLayerOp):
    """A cast to a wider float whose gradient is cast back; PyTensor's own stays in the wider dtype."""

    __props__ = ("dtype",)

    dtype: str

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        return [inputs[0].astype(self.dtype)]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]


def _widened(position_ids: Tensor, dtype: str) -> Tensor:
    """Return positions in a float dtype at least as wide."""
    if not position_ids.dtype.startswith("float") or position_ids.dtype == dtype:
        return cast(Tensor, position_ids.astype(dtype))
    return cast(Tensor, Widen(dtype=dtype)(position_ids))


def _row_length(position_ids: Tensor) -> Tensor:
    if not position_ids.type.shape[-1]:
        # Nothing has no maximum. Position 0 needs no more than the plain frequencies.
        *batch, _ = sizes(position_ids)
        nothing = pt.zeros((*batch, 1), dtype=position_ids.dtype)
        position_ids = pt.concatenate([position_ids, nothing], axis=-1)
    last = disconnected_grad(position_ids.max(axis=-1))
    if last.dtype.startswith("float"):
        return cast(Tensor, last.astype("float64") + pinned(1, "float64"))
    return cast(Tensor, last.astype("int64") + pinned(1, "int64"))


def _choose_axes(by_axis: Tensor, axes: np.ndarray) -> Tensor:
    """Return each pair's values of its own position axis, the leading one of ``by_axis``."""
    chosen: Tensor = by_axis[0]
    for axis in range(1, axes.max(initial=0) + 1):
        chosen = pt.where(pt.constant(axes == axis), by_axis[axis], chosen)
    return chosen


def _ntk_at(
    scheme: DynamicNTK, length: Tensor, position_ids: Tensor, d: int, base: float, dtype: str, exact: bool
) -> tuple[Tensor, ...]:
    """
    Return cos and sin for frequencies that follow the length.

    They are computed in float64, relative to the plain ones: to a few parts in 1e16.
    """
    original = pinned(scheme.original_max_position_embeddings, "float64")
    beyond = (length.astype("float64") - original) / original
    stretch = pinned(1, "float64") + pinned(scheme.factor, "float64") * pt.maximum(
        beyond, pinned(0, "float64")
    )
    exponents = -np.arange(0, d, 2, dtype="float64") / (d - 2)
    ratio = _exp(_log(stretch)[..., None, None] * exponents)
    theta = Default().inverse_frequencies(d, base=base)
    if not exact or position_ids.dtype.startswith("float"):
        wide = "float64" if "float64" in (position_ids.dtype, dtype) else "float32"
        return tuple(_cos_sin(_product(_widened(position_ids, wide), ratio * theta, dtype), dtype))
    turn = ratio * (theta / (2 * np.pi))
    turn = turn - pt.floor(turn)
    if dtype == "float64":
        word = (turn * pinned(2.0**63, "float64")).astype("int64").astype("uint64") * pinned(2, "uint64")
        return tuple(_cos_sin_of_words(position_ids, (word, pt.zeros_like(word)), dtype))
    scaled = turn * pinned(2.0**32, "float64")
    hi = pt.floor(scaled)
    lo = pt.floor((scaled - hi) * pinned(2.0**32, "float64"))
    words = tuple(x.astype("int64").astype("uint32") for x in (hi, lo))
    return tuple(_cos_sin_of_words(position_ids, cast(Words, words), dtype))


def _product(position_ids: Tensor, theta: np.ndarray | Tensor, dtype: str) -> Tensor:
    dtype = "float64" if "float64" in (position_ids.dtype, dtype) else "float32"
    product: Tensor = position_ids.astype(dtype)[..., None] * theta.astype(dtype)
    return product


def _cos_sin_of_words(position_ids: Tensor, words: Words, dtype: str) -> list[Tensor]:
    """Return cos and sin of integer positions, for frequencies in turns."""
    if dtype == "float64":
        return _cos_sin_float64(position_ids, *words)
    return _cos_sin_float32(position_ids, *words)


def _cos_sin_float32(
    position_ids: Tensor, f_hi: np.ndarray | Tensor, f_lo: np.ndarray | Tensor
) -> list[Tensor]:
    """Take the phase in uint32 words, which wrap alike on every linker, float64 or not."""
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


def _cos_sin_float64(
    position_ids: Tensor, f_hi: np.ndarray | Tensor, f_lo: np.ndarray | Tensor
) -> list[Tensor]:
    """Take the phase in one uint64 word, with 24 bits more of the frequency below it."""
    negative, magnitude = _sign_magnitude(position_ids)
    p = magnitude.astype("uint64")[..., None]
    phase = p * f_hi + (p * f_lo) // pinned(2**24, "uint64")
    angle = phase.astype("int64").astype("float64") * pinned(2 * np.pi / 2**64, "float64")
    return [pt.cos(angle), pt.sin(angle) * _direction(negative, "float64")]


# MLX takes float64 logarithms and exponentials in float32. These are made of what it adds and multiplies
# exactly, and are the same on every linker.
_LN2_HI, _LN2_LO = 0.6931471803691238, 1.9082149292705877e-10
_LEAST_EXPONENT, _MOST_EXPONENT = -1022, 1022


def _exp(x: Tensor) -> Tensor:
    """Return the exponential in float64: whole octaves from a table, the rest from a Taylor series."""
    x = pt.clip(
        x, pinned(_LEAST_EXPONENT * np.log(2), "float64"), pinned(_MOST_EXPONENT * np.log(2), "float64")
    )
    octaves = pt.floor(x * pinned(1 / np.log(2), "float64") + pinned(0.5, "float64"))
    rest = x - octaves * pinned(_LN2_HI, "float64") - octaves * pinned(_LN2_LO, "float64")
    series = pt.ones_like(rest)
    for n in range(14, 0, -1):
        series = pinned(1, "float64") + rest * series * pinned(1 / n, "float64")
    powers = pt.constant(np.ldexp(1.0, np.arange(_LEAST_EXPONENT, _MOST_EXPONENT + 1)))
    index = octaves.astype("int32") - pinned(_LEAST_EXPONENT, "int32")
    return cast(Tensor, series * powers[index])


def _log(x: Tensor) -> Tensor:
    """Return the logarithm in float64: a guess, and one step of Halley's method, which cubes its error."""
    guess = pt.log(x)
    back = _exp(guess)
    return cast(Tensor, guess + pinned(2, "float64") * (x - back) / (x + back))


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


def _mul_hi(a: Tensor, b: np.ndarray | Tensor) -> Tensor:
    """Return the high word of the 64-bit product of two uint32, by 16-bit products that can't overflow."""
    half, mask = pinned(2**16, "uint32"), pinned(2**16 - 1, "uint32")
    a_lo, a_hi = a & mask, a // half
    b_lo, b_hi = b & mask, b // half
    low = a_hi * b_lo + (a_lo * b_lo) // half
    mid = a_lo * b_hi + (low & mask)
    high: Tensor = a_hi * b_hi + low // half + mid // half
    return high
