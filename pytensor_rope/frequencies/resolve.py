"""Schemes from their names and from plain values, and the frequencies of any."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytensor_rope.checks import positive_number
from pytensor_rope.frequencies.axes import Axial, MRoPE
from pytensor_rope.frequencies.base import FrequencyScheme
from pytensor_rope.frequencies.decay import XPos
from pytensor_rope.frequencies.length import DynamicNTK, LongRoPE
from pytensor_rope.frequencies.static import (
    NTK,
    Default,
    FrequencyFactors,
    Linear,
    Llama3,
    Proportional,
    YaRN,
)

SCHEMES: dict[str, type[FrequencyScheme]] = {
    scheme.__name__: scheme
    for scheme in (
        Default,
        Linear,
        NTK,
        DynamicNTK,
        YaRN,
        Llama3,
        FrequencyFactors,
        LongRoPE,
        Proportional,
        MRoPE,
        Axial,
        XPos,
    )
}

# Short names of the schemes that a single number describes.
SCALINGS = ("none", "linear", "ntk")


def scheme_from_plain(plain: Sequence[Any]) -> FrequencyScheme:
    """Return the scheme that :meth:`FrequencyScheme.plain` took apart, lists in place of tuples or not."""
    name, *values = plain
    arguments = {
        key: scheme_from_plain(value) if key == "scaling" else value  # MRoPE's, the one scheme in a scheme.
        for key, value in values
    }
    return SCHEMES[name](**arguments)


def resolve_scaling(scaling: object, scaling_factor: float = 1.0) -> FrequencyScheme:
    """Return the scheme that ``scaling`` is or names, refusing a factor that would have no effect."""
    factor = positive_number("scaling_factor", scaling_factor)
    if isinstance(scaling, FrequencyScheme):
        if factor != 1:
            raise ValueError(
                f"scaling_factor={scaling_factor!r} has no effect beside scaling={scaling!r}, which has its "
                f"own: leave scaling_factor out."
            )
        return scaling
    if scaling == "linear":
        return Linear(factor=factor)
    if scaling == "ntk":
        return NTK(factor=factor)
    if scaling != "none":
        raise ValueError(
            f"scaling must be one of {', '.join(SCALINGS)} or a scheme of pytensor_rope.frequencies; got "
            f"{scaling!r}."
        )
    if factor != 1:
        raise ValueError(
            f'scaling_factor={scaling_factor!r} has no effect with scaling="none". Pass '
            f'scaling="linear" or scaling="ntk", or leave scaling_factor out.'
        )
    return Default()


def inverse_frequencies(
    rotary_dim: int,
    *,
    base: float = 10_000.0,
    scaling: str | FrequencyScheme = "none",
    scaling_factor: float = 1.0,
    length: int | None = None,
) -> np.ndarray:
    r"""
    Return the inverse frequencies :math:`\theta_i`, in radians a position.

    Parameters
    ----------
    rotary_dim : int
        Number of rotated dimensions, even.
    base : float, optional
        Base of the geometric sequence, often called theta. Default is 10000.
    scaling : {"none", "linear", "ntk"} or FrequencyScheme, optional
        How the sequence is stretched: a scheme of :mod:`pytensor_rope.frequencies`, or the short name of
        :class:`~pytensor_rope.frequencies.Default`, :class:`~pytensor_rope.frequencies.Linear` or
        :class:`~pytensor_rope.frequencies.NTK`. Default is "none".
    scaling_factor : float, optional
        Stretch; only with ``"linear"`` or ``"ntk"``. Default is 1.
    length : int, optional
        Length of the sequence, for schemes that depend on it.

    Returns
    -------
    numpy.ndarray
        Shape ``(rotary_dim // 2,)``, float64, each correctly rounded.

    Raises
    ------
    ValueError
        If a hyper-parameter is out of range or ``scaling`` is unknown, or needs a ``length``.
    TypeError
        If ``rotary_dim`` or ``length`` is no integer, or ``base`` or ``scaling_factor`` no number.

    Examples
    --------
    >>> from pytensor_rope import inverse_frequencies
    >>> inverse_frequencies(8, base=10_000.0)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    scheme = resolve_scaling(scaling, scaling_factor)
    return scheme.inverse_frequencies(rotary_dim, base=base, length=length)
