"""Layers of a modern decoder for PyTensor: rotary positions, RMSNorm, and an attention-sink cache."""

from pytensor_rope.base import Layer, VariadicLayer
from pytensor_rope.frequencies import inverse_frequencies
from pytensor_rope.lowering import register
from pytensor_rope.norm import RMSNorm, rms_norm
from pytensor_rope.rotary import RotaryEmbedding, rotary_embedding

__version__ = "0.1.0"

register()
del register

__all__ = [
    "Layer",
    "RMSNorm",
    "RotaryEmbedding",
    "VariadicLayer",
    "inverse_frequencies",
    "rms_norm",
    "rotary_embedding",
]
