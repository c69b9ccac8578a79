"""Frequency schemes: hyper-parameters to the inverse frequencies that positions are multiplied by."""

from decimal import Context, Decimal, localcontext

import numpy as np

from pytensor_rope.checks import positive_number, whole_number

SCALINGS = ("none", "linear", "ntk")

_PRECISION = Context(prec=60)
_TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281")


def inverse_frequencies(
    rotary_dim: int,
    *,
    base: float = 10_000.0,
    scaling: str = "none",
    scaling_factor: float = 1.0,
) -> np.ndarray:
    r"""
    Return the inverse frequencies :math:`\theta_i`, in radians a position.

    .. math::

        \theta_i = b^{-2i/d}, \qquad i = 0, \dots, d/2 - 1

    for ``"none"``; :math:`\theta_i / s` for ``"linear"``; and with :math:`b' = b\,s^{d/(d-2)}` in place of
    :math:`b` for ``"ntk"``.

    Parameters
    ----------
    rotary_dim : int
        Number :math:`d` of rotated dimensions, even.
    base : float, optional
        Base :math:`b` of the geometric sequence, often called theta. Default is 10000.
    scaling : {"none", "linear", "ntk"}, optional
        How the sequence is stretched. Default is "none".
    scaling_factor : float, optional
        Stretch :math:`s`; only with a ``scaling`` other than ``"none"``. Default is 1.

    Returns
    -------
    numpy.ndarray
        Shape ``(rotary_dim // 2,)``, float64, each correctly rounded.

    Raises
    ------
    ValueError
        If a hyper-parameter is out of range or ``scaling`` is unknown.
    TypeError
        If ``rotary_dim`` is no integer, or ``base`` or ``scaling_factor`` no number.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.
    .. [2] Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation",
       arXiv 2306.15595 ("linear").
    .. [3] bloc97, "NTK-Aware Scaled RoPE", 2023 ("ntk").

    Examples
    --------
    >>> from pytensor_rope import inverse_frequencies
    >>> inverse_frequencies(8, base=10_000.0)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    exact = _exact_frequencies(rotary_dim, base, scaling, scaling_factor)
    return np.array([float(theta) for theta in exact])


def turns(rotary_dim: int, base: float, scaling: str, scaling_factor: float, *, bits: int) -> list[int]:
    """Return each inverse frequency in turns a position, as a fraction of ``2**bits``, whole turns gone."""
    exact = _exact_frequencies(rotary_dim, base, scaling, scaling_factor)
    with localcontext(_PRECISION):
        return [int((theta / _TWO_PI * 2**bits).to_integral_value()) % 2**bits for theta in exact]


def check_rotary_dim(rotary_dim: object, name: str = "rotary_dim") -> int:
    """Return ``rotary_dim`` as an int, refusing what can't be split into pairs."""
    d = whole_number(name, rotary_dim, least=2)
    if d % 2:
        raise ValueError(
            f"{name} must be even, since dimensions are rotated in pairs; got {d}. Pass an even "
            f"rotary_dim to rotate part of the head."
        )
    return d


def check_scheme(base: float, scaling: str, scaling_factor: float) -> tuple[float, str, float]:
    """Return the scheme's hyper-parameters as plain values, refusing what gives no frequencies."""
    base = positive_number("base", base)
    if scaling not in SCALINGS:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}; got {scaling!r}.")
    scaling_factor = positive_number("scaling_factor", scaling_factor)
    if scaling == "none" and scaling_factor != 1:
        raise ValueError(
            f'scaling_factor={scaling_factor!r} has no effect with scaling="none". Pass '
            f'scaling="linear" or scaling="ntk", or leave scaling_factor out.'
        )
    return base, scaling, scaling_factor


def check_scheme_fits(scaling: str, rotary_dim: int) -> None:
    """Refuse a scheme that gives no frequencies for ``rotary_dim``."""
    if scaling == "ntk" and rotary_dim == 2:
        raise ValueError('scaling="ntk" needs a rotary_dim above 2: its exponent is d / (d - 2).')


def _exact_frequencies(rotary_dim: int, base: float, scaling: str, scaling_factor: float) -> list[Decimal]:
    """Return the inverse frequencies to 60 digits: float64 would lose a turn's fraction far out."""
    d = check_rotary_dim(rotary_dim)
    base, scaling, scaling_factor = check_scheme(base, scaling, scaling_factor)
    check_scheme_fits(scaling, d)
    with localcontext(_PRECISION):
        log_base = Decimal(base).ln()
        factor = Decimal(scaling_factor)
        if scaling == "ntk":
            log_base += factor.ln() * d / (d - 2)
        stretch = factor if scaling == "linear" else Decimal(1)
        return [(log_base * -2 * i / d).exp() / stretch for i in range(d // 2)]
