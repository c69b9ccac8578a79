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
    from pytensor_rope.functional import to_jax, to_mlx
    from pytensor_rope.graph_files import GraphFileError, load_graph, save_graph
    from pytensor_rope.layout import remap_positions
    from pytensor_rope.model import Model, load_model
    from pytensor_rope.norm import RMSNorm, rms_norm
    from pytensor_rope.rotary import RotaryEmbedding, rotary_embedding
    from pytensor_rope.sharding import decoder_shardings, state_shardings
    from pytensor_rope.stream import Stream

__version__ = "0.1.0"

# Where each public name is defined. PyTensor takes a second to import, so it is imported with the first
# name that needs it: the command line answers --help at once.
_HOMES = {
    "CheckpointError": "checkpoints",
    "Decoder": "decoder",
    "DecoderConfig": "config",
    "DecoderState": "decoder",
    "GraphFileError": "graph_files",
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
    "decoder_shardings": "sharding",
    "frequencies_from_config": "checkpoints.rope",
    "function": "backends",
    "inverse_frequencies": "frequencies",
    "load_graph": "graph_files",
    "load_model": "model",
    "remap_positions": "layout",
    "rms_norm": "norm",
    "rotary_embedding": "rotary",
    "save_graph": "graph_files",
    "state_shardings": "sharding",
    "to_jax": "functional",
    "to_mlx": "functional",
}

__all__ = [
    "CheckpointError",
    "Decoder",
    "DecoderConfig",
    "DecoderState",
    "GraphFileError",
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
    "decoder_shardings",
    "frequencies",
    "frequencies_from_config",
    "function",
    "inverse_frequencies",
    "load_graph",
    "load_model",
    "remap_positions",
    "rms_norm",
    "rotary_embedding",
    "save_graph",
    "state_shardings",
    "to_jax",
    "to_mlx",
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
