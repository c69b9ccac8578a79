"""
Frequency schemes: hyper-parameters to the inverse frequencies that positions are multiplied by.

Each scheme is a small frozen dataclass: it compares, hashes and pickles by its values, and prints as the
code that makes it. What a scheme computes is a pure function of its values, of the rotary dimension and base
and, for the schemes that change with it, of the current length: nothing is remembered between calls.
"""

from pytensor_rope.frequencies.axes import Axial, MRoPE
from pytensor_rope.frequencies.base import FrequencyScheme, check_rotary_dim, turns
from pytensor_rope.frequencies.decay import XPos
from pytensor_rope.frequencies.length import DynamicNTK, LengthDependent, LongRoPE
from pytensor_rope.frequencies.resolve import SCHEMES, inverse_frequencies, resolve_scaling, scheme_from_plain
from pytensor_rope.frequencies.static import (
    NTK,
    UNSCALED,
    Default,
    FrequencyFactors,
    Linear,
    Llama3,
    Proportional,
    YaRN,
)

__all__ = [
    "NTK",
    "SCHEMES",
    "UNSCALED",
    "Axial",
    "Default",
    "DynamicNTK",
    "FrequencyFactors",
    "FrequencyScheme",
    "LengthDependent",
    "Linear",
    "Llama3",
    "LongRoPE",
    "MRoPE",
    "Proportional",
    "XPos",
    "YaRN",
    "check_rotary_dim",
    "inverse_frequencies",
    "resolve_scaling",
    "scheme_from_plain",
    "turns",
]
