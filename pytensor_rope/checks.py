"""Checks of plain values, where they enter."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# The counter of a stream's tokens is an int32.
MOST_TOKENS = 2**31 - 1


def whole_number(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int, refusing what is no integer (TypeError) or out of range (ValueError)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}.")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}; got {value}.")
    return int(value)


def finite_number(name: str, value: object) -> float:
    """Return ``value`` as a float, refusing what is no number (TypeError) or not finite (ValueError)."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite; got {value!r}.")
    return number


def positive_number(name: str, value: object) -> float:
    """Return ``value`` as a float, refusing what is no number or not positive and finite."""
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be positive and finite; got {value!r}.")
    return number


def not_negative(name: str, value: object) -> float:
    """Return ``value`` as a float, refusing what is below 0."""
    number = finite_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0; got {value!r}.")
    return number


def at_least_1(name: str, value: object) -> float:
    """Return ``value`` as a float, refusing what is below 1."""
    number = positive_number(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1; got {value!r}.")
    return number


def true_or_false(name: str, value: object) -> bool:
    """Return ``value``, refusing what is neither True nor False (TypeError)."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {value!r}.")
    return value


def token_counts(name: str, n: object) -> npt.NDArray[np.int32]:
    """Return ``n``, one number of tokens or one for each row, as int32, refusing what is none."""
    counts = as_array(name, n)
    if not np.issubdtype(counts.dtype, np.integer) or counts.ndim > 1:
        raise TypeError(f"{name} must be an integer, or one for each row; got {n!r}.")
    if (counts < 0).any():
        raise ValueError(f"{name} must be at least 0; got {n!r}.")
    # Wide enough for the bound: NumPy compares a narrow integer with a number of its own dtype alone.
    bounded: npt.NDArray[np.int32] = np.minimum(counts.astype("uint64"), MOST_TOKENS).astype("int32")
    return bounded


def as_array(name: str, value: object) -> npt.NDArray[Any]:
    """Return ``value`` as an array, refusing nested sequences of different lengths (ValueError)."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must make a regular array; got {value!r}.") from error


def one_of[Choice: str](name: str, value: object, choices: Sequence[Choice]) -> Choice:
    """Return which of ``choices`` a string is, refusing everything else (ValueError)."""
    # An array of strings would compare to an array.
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
    return choices[choices.index(value)]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number; got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf
