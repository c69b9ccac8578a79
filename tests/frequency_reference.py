"""
Inverse frequencies straight from each scheme's definition, pair by pair.

mpmath and the standard library alone: nothing here imports this package.
"""

import math

import mpmath

DIGITS = 50


def plain(d, base):
    with mpmath.workdps(DIGITS):
        return [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / d) for i in range(d // 2)]


def linear(d, base, factor):
    with mpmath.workdps(DIGITS):
        return [theta / mpmath.mpf(factor) for theta in plain(d, base)]


def ntk_base(d, base, factor):
    with mpmath.workdps(DIGITS):
        return mpmath.mpf(base) * mpmath.mpf(factor) ** (mpmath.mpf(d) / (d - 2))


def ntk(d, base, factor):
    return plain(d, ntk_base(d, base, factor))


def dynamic_base(d, base, factor, original, length):
    with mpmath.workdps(DIGITS):
        factor, length = mpmath.mpf(factor), max(length, original)
        return ntk_base(d, base, factor * length / original - (factor - 1))


def dynamic(d, base, factor, original, length):
    return plain(d, dynamic_base(d, base, factor, original, length))


def yarn_range(d, base, original, fast=32, slow=1, truncate=True):
    with mpmath.workdps(DIGITS):

        def pair(turns):
            return d * mpmath.log(mpmath.mpf(original) / (turns * 2 * mpmath.pi)) / (2 * mpmath.log(base))

        low, high = pair(fast), pair(slow)
        if truncate:
            low, high = mpmath.floor(low), mpmath.ceil(high)
        low, high = max(low, mpmath.mpf(0)), min(high, mpmath.mpf(d - 1))
        return low, high + mpmath.mpf("0.001") if low == high else high


def yarn(d, base, factor, original, fast=32, slow=1, truncate=True):
    with mpmath.workdps(DIGITS):
        low, high = yarn_range(d, base, original, fast, slow, truncate)
        thetas = []
        for i, theta in enumerate(plain(d, base)):
            ramp = min(max((i - low) / (high - low), 0), 1)
            thetas.append(theta / mpmath.mpf(factor) * ramp + theta * (1 - ramp))
        return thetas


def yarn_magnitude(factor, mscale=1.0):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def llama3(d, base, factor, low, high, original):
    with mpmath.workdps(DIGITS):
        thetas = []
        for theta in plain(d, base):
            wavelength = 2 * mpmath.pi / theta
            if wavelength > mpmath.mpf(original) / low:
                theta = theta / factor
            elif wavelength >= mpmath.mpf(original) / high:
                smooth = (original / wavelength - low) / (mpmath.mpf(high) - low)
                theta = (1 - smooth) * theta / factor + smooth * theta
            thetas.append(theta)
        return thetas


def divided(d, base, factors):
    with mpmath.workdps(DIGITS):
        return [theta / mpmath.mpf(s) for theta, s in zip(plain(d, base), factors, strict=True)]


def proportional(d, base, part, factor=1.0):
    with mpmath.workdps(DIGITS):
        turning = int(part * d // 2)
        return [
            theta / mpmath.mpf(factor) if i < turning else mpmath.mpf(0)
            for i, theta in enumerate(plain(d, base))
        ]


def axial(d, base, alternate):
    if not alternate:
        return plain(d // 2, base) * 2
    every = plain(d, base)
    return every[0::2] + every[1::2]


def interleaved_axes(section):
    """Return the axis of each pair: time everywhere but at 1, 4, 7, … below 3h and 2, 5, 8, … below 3w."""
    t, h, w = section
    axes = []
    for i in range(t + h + w):
        if i % 3 == 1 and i < 3 * h:
            axes.append(1)
        elif i % 3 == 2 and i < 3 * w:
            axes.append(2)
        else:
            axes.append(0)
    return axes
