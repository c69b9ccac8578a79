"""Checks of what schemes have in common, which put plain values into their fields."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from pytensor_rope.checks import positive_number, whole_number
from pytensor_rope.frequencies.base import FrequencyScheme


def set_original(scheme: Any) -> None:
    """Check the length that a model was trained on."""
    name = "original_max_position_embeddings"
    value = whole_number(name, getattr(scheme, name), least=1)
    if value >= 2**63:
        raise ValueError(f"{name} must be below 2**63, as positions are; got {value}.")
    scheme._set(name, value)


def set_attention_factor(scheme: Any) -> None:
    """Check the factor on cosines and sines, None for the one that follows from others."""
    if scheme.attention_factor is not None:
        scheme._set("attention_factor", positive_number("attention_factor", scheme.attention_factor))


def set_factors(scheme: Any, name: str) -> None:
    """Check factors, one a pair of dimensions, and keep them as a tuple."""
    given = getattr(scheme, name)
    if isinstance(given, str | Set | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must hold one factor a pair of dimensions; got {given!r}.")
    scheme._set(name, tuple(positive_number(f"A factor in {name}", factor) for factor in given))


def check_factors(name: str, factors: tuple[float, ...], rotary_dim: int) -> None:
    """Refuse another number of factors than pairs."""
    if len(factors) != rotary_dim // 2:
        raise ValueError(
            f"{name} must have one factor a pair, rotary_dim // 2 = {rotary_dim // 2}; got {len(factors)}."
        )


def check_ntk_dim(scheme: FrequencyScheme, rotary_dim: int) -> None:
    """Refuse the dimension for which NTK-aware scaling has no exponent."""
    if rotary_dim == 2:
        raise ValueError(f"{type(scheme).__name__} needs a rotary_dim above 2: its exponent is d / (d - 2).")
