"""
Inverse frequencies to 60 digits, straight from the formulas of the papers and of transformers 5.24.0.

mpmath and NumPy alone: nothing here imports this package. A scheme is a name and its keyword arguments.
"""

from functools import cache

import mpmath
import numpy as np

DIGITS = 80


def table(rotary_dim, base=10_000.0, name="default", **arguments):
    """Return the inverse frequencies of one scheme, one mpf a pair."""
    frozen = tuple(sorted((key, as_tuple(value)) for key, value in arguments.items()))
    return _table(rotary_dim, base, name, frozen)


def as_tuple(value):
    return tuple(value) if isinstance(value, list) else value


@cache
def _table(rotary_dim, base, name, arguments):
    with mpmath.workdps(DIGITS):
        return SCHEMES[name](rotary_dim, mpmath.mpf(base), **dict(arguments))


def default(d, base):
    return [base ** (mpmath.mpf(-2 * i) / d) for i in range(d // 2)]


def linear(d, base, factor):
    return [theta / factor for theta in default(d, base)]


def ntk(d, base, factor):
    return default(d, base * mpmath.mpf(factor) ** (mpmath.mpf(d) / (d - 2)))


def yarn(d, base, factor, original, beta_fast=32, beta_slow=1, truncate=True):
    def correction(turns):
        return d * mpmath.log(original / (turns * 2 * mpmath.pi)) / (2 * mpmath.log(base))

    low, high = correction(mpmath.mpf(beta_fast)), correction(mpmath.mpf(beta_slow))
    if truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += mpmath.mpf("0.001")
    frequencies = []
    for i, theta in enumerate(default(d, base)):
        ramp = min(max((i - low) / (high - low), 0), 1)
        frequencies.append(theta / factor * ramp + theta * (1 - ramp))
    return frequencies


def llama3(d, base, factor, low, high, original):
    frequencies = []
    for theta in default(d, base):
        wavelength = 2 * mpmath.pi / theta
        if wavelength > mpmath.mpf(original) / low:
            frequencies.append(theta / factor)
        elif wavelength < mpmath.mpf(original) / high:
            frequencies.append(theta)
        else:
            smooth = (original / wavelength - low) / (high - low)
            frequencies.append(((1 - smooth) / factor + smooth) * theta)
    return frequencies


def factors(d, base, factors):
    return [theta / factor for theta, factor in zip(default(d, base), factors, strict=True)]


def proportional(d, base, part, factor=1):
    turning = int(part * d // 2)
    return [theta / factor if i < turning else mpmath.mpf(0) for i, theta in enumerate(default(d, base))]


def axial(d, base, alternate=False):
    if alternate:
        return default(d, base)[0::2] + default(d, base)[1::2]
    return default(d // 2, base) * 2


SCHEMES = {
    scheme.__name__: scheme for scheme in (default, linear, ntk, yarn, llama3, factors, proportional, axial)
}


def cos_sin(positions, thetas):
    """Return cosines and sines at integer positions, ``(position, pair)``, to float64's last digits."""
    bits = 240
    with mpmath.workdps(90):
        turns = [int(mpmath.nint(theta / (2 * mpmath.pi) * 2**bits)) for theta in thetas]
    half = 2 ** (bits - 1)
    fractions = [[((int(p) * turn + half) % 2**bits - half) / 2**bits for turn in turns] for p in positions]
    angles = 2 * np.pi * np.array(fractions)
    return np.cos(angles), np.sin(angles)
