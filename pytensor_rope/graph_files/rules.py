"""What the value of an op's prop may be: one predicate a kind of value, with its description for errors."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# PyTensor loops over axes, outputs and taps while it builds a node: their number is bounded.
MOST_AXES = 32
MOST_ITEMS = 4096
_LONGEST_TEXT = 4096
_DEEPEST = 8


class Rule(NamedTuple):
    """
    What a value may be.

    Attributes
    ----------
    description : str
        As in "must be {description}".
    allows : callable
        Whether a value is allowed. Values are as :mod:`pytensor_ml` decodes them: None, bool, int, float,
        str, slice and tuples of these, of any size.
    """

    description: str
    allows: Callable[[Any], bool]


def is_integer(value: object, least: int, most: int) -> bool:
    """Return whether a value is an int, not a bool, within bounds."""
    return type(value) is int and least <= value <= most


def integer(least: int, most: int) -> Rule:
    """Allow the integers within bounds."""
    return Rule(f"an integer from {least} to {most}", lambda value: is_integer(value, least, most))


def optional(rule: Rule) -> Rule:
    """Allow None too."""
    return Rule(f"{rule.description} or null", lambda value: value is None or rule.allows(value))


def either(first: Rule, second: Rule) -> Rule:
    """Allow what one of two rules does."""
    return Rule(
        f"{first.description} or {second.description}",
        lambda value: first.allows(value) or second.allows(value),
    )


def tuple_of(rule: Rule, most: int = MOST_ITEMS) -> Rule:
    """Allow tuples of what a rule allows."""
    return Rule(
        f"a tuple of at most {most}, each {rule.description}",
        lambda value: type(value) is tuple and len(value) <= most and all(map(rule.allows, value)),
    )


def one_of(*values: Any) -> Rule:
    """Allow certain values, of just their types."""
    return Rule(
        f"one of {', '.join(map(repr, values))}",
        lambda value: any(type(value) is type(allowed) and value == allowed for allowed in values),
    )


def _is_number(value: object) -> bool:
    return is_integer(value, -(2**53), 2**53) or (type(value) is float and math.isfinite(value))


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, tuple):
        small = len(value) <= MOST_ITEMS and depth < _DEEPEST
        return small and all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, slice):
        return _is_plain((value.start, value.stop, value.step), depth + 1)
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    if type(value) is int:
        return abs(value) < 2**63
    return value is None or isinstance(value, bool | float)


def _is_index(value: object) -> bool:
    """Return whether a value is one of ``idx_list``: the number of an input, or a slice of such."""
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return all(part is None or is_integer(part, 0, 4 * MOST_AXES) for part in parts)
    return is_integer(value, 0, 4 * MOST_AXES)


boolean = Rule("true or false", lambda value: type(value) is bool)
no = Rule("false, since only a graph that is already optimized works in place", lambda value: value is False)
number = Rule("a finite number", _is_number)
positive = Rule("a positive number", lambda value: _is_number(value) and value > 0)
text = Rule("a string", lambda value: type(value) is str and len(value) <= _LONGEST_TEXT)
dtype = one_of(*DTYPES)
real_dtype = one_of("float32", "float64")
axis = integer(-MOST_AXES, MOST_AXES)
axes = optional(tuple_of(axis, MOST_AXES))
ndim = integer(0, MOST_AXES)
count = integer(0, MOST_ITEMS)
plain = Rule("null, a boolean, a number, a string, a slice, or a tuple of these", _is_plain)
indices = tuple_of(Rule("the number of an input, or a slice of such", _is_index), MOST_AXES)
