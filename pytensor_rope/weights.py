"""The weights of a decoder: their names and shapes, random ones, and checks of given ones."""

from collections.abc import Mapping

import numpy as np

from pytensor_rope.base import FLOAT_DTYPES
from pytensor_rope.config import DecoderConfig


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every weight of a decoder."""
    hidden, inner = config.hidden_size, config.intermediate_size
    n_query, n_key = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    layer = {
        "attention_norm": (hidden,),
        "query": (hidden, n_query),
        "key": (hidden, n_key),
        "value": (hidden, n_key),
        "output": (n_query, hidden),
        "feed_forward_norm": (hidden,),
        "gate": (hidden, inner),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, hidden)}
    for i in range(config.n_layer):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm"] = (hidden,)
    if not config.tied:
        shapes["head"] = (hidden, config.vocab_size)
    return shapes


def random_weights(config: DecoderConfig, seed: int | None) -> dict[str, np.ndarray]:
    """Return normal weights of standard deviation 0.02, and norms of 1, in float32."""
    rng = np.random.default_rng(seed)
    return {
        name: np.ones(shape, "float32")
        if name.endswith("norm")
        else rng.normal(0, 0.02, shape).astype("float32")
        for name, shape in weight_shapes(config).items()
    }


def check_weights(weights: Mapping[str, np.ndarray], config: DecoderConfig) -> None:
    """Refuse weights that are missing, left over, of another shape, or of several dtypes."""
    shapes = weight_shapes(config)
    missing, surplus = shapes.keys() - weights.keys(), weights.keys() - shapes.keys()
    if missing or surplus:
        raise ValueError(
            f"The weights don't fit the config: missing {sorted(missing)[:5] or 'none'}, left over "
            f"{sorted(surplus)[:5] or 'none'}."
        )
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ValueError(f"Weight {name!r} must have shape {shape}; got {weights[name].shape}.")
    dtypes = {str(weight.dtype) for weight in weights.values()}
    if len(dtypes) > 1 or not dtypes <= set(FLOAT_DTYPES):
        raise ValueError(f"The weights must have one float dtype; got {', '.join(sorted(dtypes))}.")
