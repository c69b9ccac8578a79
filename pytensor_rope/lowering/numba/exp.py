"""An exponential function that loops over it are vectorized with, which NumPy's is not in Numba."""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

# Reordered, the reduction of the argument would lose what it keeps.
_FASTMATH = {"contract", "nsz"}


@numba_njit(fastmath=_FASTMATH)
def _exp_float32(x: Any) -> Any:
    smallest, shift = np.float32(-87), np.float32(1.5 * 2**23)  # Adding the shift rounds to an integer.
    bounded = max(x, smallest)
    shifted = bounded * np.float32(1.44269504) + shift
    n = shifted - shift
    r = bounded - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    # The Taylor series of exp(r), its coefficients fitted to |r| <= ln(2) / 2 (Cephes, expf).
    series = np.float32(1.9875691500e-4)
    series = series * r + np.float32(1.3981999507e-3)
    series = series * r + np.float32(8.3334519073e-3)
    series = series * r + np.float32(4.1665795894e-2)
    series = series * r + np.float32(1.6666665459e-1)
    series = series * r + np.float32(5.0000001201e-1)
    series = series * r * r + r + np.float32(1)
    exponent = np.int32(np.float32(shifted).view(np.int32) << np.int32(23))
    power = np.int32(exponent + np.int32(127 << 23)).view(np.float32)
    return np.float32(0) if x < smallest else series * power


@numba_njit(fastmath=_FASTMATH)
def _exp_float64(x: Any) -> Any:
    smallest, shift = -708.0, 1.5 * 2.0**52
    bounded = max(x, smallest)
    shifted = bounded * 1.4426950408889634 + shift
    n = shifted - shift
    r = bounded - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10
    # The Taylor series of exp(r), to which the next term adds nothing where |r| <= ln(2) / 2.
    series = 1 / 6227020800.0
    series = series * r + 1 / 479001600.0
    series = series * r + 1 / 39916800.0
    series = series * r + 1 / 3628800.0
    series = series * r + 1 / 362880.0
    series = series * r + 1 / 40320.0
    series = series * r + 1 / 5040.0
    series = series * r + 1 / 720.0
    series = series * r + 1 / 120.0
    series = series * r + 1 / 24.0
    series = series * r + 1 / 6.0
    series = series * r + 0.5
    series = series * r * r + r + 1.0
    exponent = np.int64(np.float64(shifted).view(np.int64) << np.int64(52))
    power = np.int64(exponent + np.int64(1023 << 52)).view(np.float64)
    return 0.0 if x < smallest else series * power


def exp_below_0(dtype: str) -> Callable[[Any], Any]:
    """Return exp(x) for x that is 0 or below, or NaN; what is below the smallest normal number is 0."""
    function: Callable[[Any], Any] = _exp_float64 if dtype == "float64" else _exp_float32
    return function
