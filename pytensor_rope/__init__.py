"""Layers of a modern decoder for PyTensor: rotary positions, RMSNorm, and an attention-sink cache."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytensor_rope.lowering import register

if TYPE_CHECKING:
    from pytensor_rope import frequencies
    from pytensor_rope.backends import function
    from pytensor_rope.base import Layer, VariadicLayer
    from pytensor_rope.cache import SinkAngles, SinkCache, SinkCacheState
    from pytensor_rope.checkpoints import CheckpointError
    from pytensor_rope.checkpoints.base import RotaryFrequencies
    from pytensor_rope.checkpoints.rope import frequencies_from_config
    from pytensor_rope.config import DecoderConfig
    from pytensor_rope.decoder import Decoder, DecoderState
    from pytensor_rope.frequencies import inverse_frequencies
    from pytensor_rope.layout import remap_positions
    from pytensor_rope.model import Model, load_model
    from pytensor_rope.norm import RMSNorm, rms_norm
    from pytensor_rope.rotary import RotaryEmbedding, rotary_embedding
    from pytensor_rope.stream import Stream

__version__ = "0.1.0"

# Where each public name is defined. PyTensor takes a second to import, so it is imported with the first
# name that needs it: the command line answers --help at once.
_HOMES = {
    "CheckpointError": "checkpoints",
    "Decoder": "decoder",
    "DecoderConfig": "config",
    "DecoderState": "decoder",
    "Layer": "base",
    "Model": "model",
    "RMSNorm": "norm",
    "RotaryEmbedding": "rotary",
    "RotaryFrequencies": "checkpoints.base",
    "SinkAngles": "cache",
    "SinkCache": "cache",
    "SinkCacheState": "cache",
    "Stream": "stream",
    "VariadicLayer": "base",
    "frequencies_from_config": "checkpoints.rope",
    "function": "backends",
    "inverse_frequencies": "frequencies",
    "load_model": "model",
    "remap_positions": "layout",
    "rms_norm": "norm",
    "rotary_embedding": "rotary",
}

__all__ = [
    "CheckpointError",
    "Decoder",
    "DecoderConfig",
    "DecoderState",
    "Layer",
    "Model",
    "RMSNorm",
    "RotaryEmbedding",
    "RotaryFrequencies",
    "SinkAngles",
    "SinkCache",
    "SinkCacheState",
    "Stream",
    "VariadicLayer",
    "frequencies",
    "frequencies_from_config",
    "function",
    "inverse_frequencies",
    "load_model",
    "remap_positions",
    "rms_norm",
    "rotary_embedding",
]

register()
del register


def __getattr__(name: str) -> Any:
    if name == "frequencies":
        return import_module("pytensor_rope.frequencies")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
