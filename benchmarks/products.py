"""A decoder's matrix products alone, in one library: what no code around them can be faster than."""

from collections.abc import Callable
from typing import Any

import numpy as np

import pytensor_rope as rope
from benchmarks.measure import finish, to_library

PRODUCTS = "its matrix products"


def products(
    weights: dict[str, np.ndarray], config: rope.DecoderConfig, tokens: int, library: str
) -> Callable[[int], object]:
    """
    Return a function that multiplies what reading ``tokens`` at once multiplies, with nothing in between.

    The weights are the model's own, stored (in, out); what they multiply is random. The output head is for
    the last token alone, in the library's faster form for one row: a matrix times a vector, or with MLX a
    vector times the transposed matrix.
    """
    rng = np.random.default_rng(2)
    dtype = weights["embedding"].dtype
    widths = {config.hidden_size, config.intermediate_size, config.n_head * config.head_dim}
    rows = {
        width: to_library(rng.standard_normal((tokens, width)).astype(dtype), library) for width in widths
    }
    layers: list[list[Any]] = [[] for _ in range(config.n_layer)]
    for name, weight in weights.items():
        if name.startswith("layers.") and weight.ndim == 2:
            layers[int(name.split(".")[1])].append(to_library(weight, library))
    head = weights["embedding"] if config.tied else weights["head"].T
    last = to_library(rng.standard_normal(config.hidden_size).astype(dtype), library)
    if library == "mlx":
        head_product = last, to_library(np.ascontiguousarray(head.T), library)
    else:
        head_product = to_library(np.ascontiguousarray(head), library), last
    multiply = _multiplier(library)

    def multiply_all(i: int) -> None:
        for layer in layers:
            multiply([(rows[weight.shape[0]], weight) for weight in layer])
        multiply([head_product])

    return multiply_all


def _multiplier(library: str) -> Callable[[list[tuple[Any, Any]]], object]:
    def multiply(pairs: list[tuple[Any, Any]]) -> list[Any]:
        return [a @ b for a, b in pairs]

    if library == "numpy":
        return multiply
    if library == "jax":
        import jax

        multiply = jax.jit(multiply)
    return lambda pairs: finish(multiply(pairs), library)
