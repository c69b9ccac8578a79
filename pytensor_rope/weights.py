"""The weights of a decoder: their names and shapes, random ones, and checks of given ones."""

from collections.abc import Container, Mapping

import numpy as np

from pytensor_rope.base import FLOAT_DTYPES
from pytensor_rope.config import DecoderConfig

Shapes = dict[str, tuple[int, ...]]

# Projections of one input. Side by side in one matrix, they are one product instead of several.
_SIDE_BY_SIDE = {"query_key_value": ("query", "key", "value"), "gate_up": ("gate", "up")}


def weight_shapes(config: DecoderConfig, *, joined: bool = False) -> Shapes:
    """Return the name and shape of every weight of a decoder, matrices as ``(in, out)``."""
    hidden = config.hidden_size
    layer = layer_shapes(config, joined=joined)
    shapes: Shapes = {"embedding": (config.vocab_size, hidden)}
    for i in range(config.n_layer):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes |= _norm(config, "final_norm", (hidden,))
    if not config.tied:
        shapes["head"] = (hidden, config.vocab_size)
    if config.head_bias:
        shapes["head_bias"] = (config.vocab_size,)
    return shapes


def layer_shapes(config: DecoderConfig, *, joined: bool = False) -> Shapes:
    """Return the name and shape of every weight of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    n_query, n_key = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    before, after = config.norm_placement != "after", config.norm_placement != "before"
    shapes: Shapes = {}
    if before:
        shapes |= _norm(config, "attention_norm", (hidden,))
    shapes |= _projection("query", hidden, n_query, bias=config.qkv_bias)
    shapes |= _projection("key", hidden, n_key, bias=config.qkv_bias)
    shapes |= _projection("value", hidden, n_key, bias=config.qkv_bias)
    if config.qk_norm is not None:
        shapes |= _norm(config, "query_norm", _qk_norm_shape(config, config.n_head))
        shapes |= _norm(config, "key_norm", _qk_norm_shape(config, config.n_kv_head))
    shapes |= _projection("output", n_query, hidden, bias=config.output_bias)
    if after:
        shapes |= _norm(config, "attention_output_norm", (hidden,))
    if before and not config.shared_norm:
        shapes |= _norm(config, "feed_forward_norm", (hidden,))
    if config.gated:
        shapes |= _projection("gate", hidden, inner, bias=config.feed_forward_bias)
    shapes |= _projection("up", hidden, inner, bias=config.feed_forward_bias)
    shapes |= _projection("down", inner, hidden, bias=config.feed_forward_bias)
    if after:
        shapes |= _norm(config, "feed_forward_output_norm", (hidden,))
    if joined:
        for name, parts in _joined_parts(shapes).items():
            *n_in, _ = shapes[parts[0]]
            shapes[name] = (*n_in, sum(shapes.pop(part)[-1] for part in parts))
    return shapes


def join_projections(weights: dict[str, np.ndarray], config: DecoderConfig) -> None:
    """
    Put "query", "key" and "value" of each layer side by side, as "query_key_value", and "gate" and "up".

    It is done in place, a layer at a time, so that no more than one layer is there twice. What is not whole
    stays as it is, for :func:`check_weights` to refuse.
    """
    for i in range(config.n_layer):
        for name, parts in _joined_parts(layer_shapes(config)).items():
            names = [f"layers.{i}.{part}" for part in parts]
            if weights.keys() >= set(names):
                weights[f"layers.{i}.{name}"] = np.concatenate([weights.pop(part) for part in names], axis=-1)


def separate_projections(weights: Mapping[str, np.ndarray], config: DecoderConfig) -> dict[str, np.ndarray]:
    """Return the weights as :func:`weight_shapes` lists them, views of those that have been joined."""
    if not are_joined(weights):
        return dict(weights)
    shapes, separate = layer_shapes(config), dict(weights)
    for i in range(config.n_layer):
        for name, parts in _joined_parts(shapes).items():
            ends = np.cumsum([shapes[part][-1] for part in parts])
            arrays = np.split(separate.pop(f"layers.{i}.{name}"), ends[:-1], axis=-1)
            separate |= {f"layers.{i}.{part}": array for part, array in zip(parts, arrays, strict=True)}
    return separate


def are_joined(names: Container[str]) -> bool:
    """Return whether weights of these names are as :func:`join_projections` leaves them."""
    return "layers.0.query_key_value" in names


def random_weights(config: DecoderConfig, seed: int | None) -> dict[str, np.ndarray]:
    """Return normal weights of standard deviation 0.02, norms that scale by 1, biases of 0."""
    rng = np.random.default_rng(seed)

    def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
        mean, std = initial_distribution(name, config)
        return (rng.normal(mean, std, shape) if std else np.full(shape, mean)).astype("float32")

    return {name: initial(name, shape) for name, shape in weight_shapes(config).items()}


def initial_distribution(name: str, config: DecoderConfig) -> tuple[float, float]:
    """Return mean and standard deviation of the normal distribution that a random weight is drawn from."""
    if name.endswith("norm"):
        return (0.0, 0.0) if config.unit_offset else (1.0, 0.0)
    return (0.0, 0.0) if name.endswith("bias") else (0.0, 0.02)


def check_weights(weights: Mapping[str, np.ndarray], config: DecoderConfig) -> None:
    """Refuse weights that are missing, left over, of another shape, or of several dtypes."""
    shapes = weight_shapes(config, joined=are_joined(weights))
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


def _joined_parts(names: Container[str]) -> dict[str, list[str]]:
    """Return what the weights of a layer are called once joined, and the parts of each."""
    return {
        f"{name}{suffix}": [f"{part}{suffix}" for part in parts]
        for name, parts in _SIDE_BY_SIDE.items()
        for suffix in ("", "_bias")
        if f"{parts[0]}{suffix}" in names
    }


def _norm(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> Shapes:
    return {name: shape} | ({f"{name}_bias": shape} if config.norm_bias else {})


def _projection(name: str, n_in: int, n_out: int, *, bias: bool) -> Shapes:
    return {name: (n_in, n_out)} | ({f"{name}_bias": (n_out,)} if bias else {})


def _qk_norm_shape(config: DecoderConfig, n_head: int) -> tuple[int, ...]:
    match config.qk_norm:
        case "heads":
            return (n_head, config.head_dim)
        case "width":
            return (n_head * config.head_dim,)
    return (config.head_dim,)
