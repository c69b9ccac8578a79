"""A decoder's matrix products alone, in one library: what no code around them can be faster than."""

from collections.abc import Callable
from typing import Any

import numpy as np

import pytensor_rope as rope
from benchmarks.measure import finish, to_library
from pytensor_rope.weights import join_projections

PRODUCTS = "its matrix products"


def products(
    weights: dict[str, np.ndarray], config: rope.DecoderConfig, tokens: int, library: str
) -> Callable[[int], object]:
    """
    Return a function that multiplies what reading ``tokens`` at once multiplies, with nothing in between.

    The weights are the model's own, stored (in, out), those of one input side by side as in a loaded model;
    what they multiply is random. The output head is for
    the last token alone, in the library's faster form for one row: a matrix times a vector, or with MLX a
    vector times the transposed matrix.
    """
    weights = dict(weights)
    join_projections(weights, config)
    rng = np.random.default_rng(2)
    dtype = weights["embedding"].dtype
    widths = {config.hidden_size, config.intermediate_size, config.n_head * config.head_dim}
    rows = {
        width: to_library(rng.standard_normal((tokens, width)).astype(dtype), library) for width in widths
    }
    pairs: list[tuple[Any, Any]] = []
    for name, weight in weights.items():
        if name.startswith("layers.") and weight.ndim == 2:
            pairs.append((rows[weight.shape[0]], to_library(weight, library)))
    head = weights["embedding"] if config.tied else weights["head"].T
    last = to_library(rng.standard_normal(config.hidden_size).astype(dtype), library)
    if library == "mlx":
        pairs.append((last, to_library(np.ascontiguousarray(head.T), library)))
    else:
        pairs.append((to_library(np.ascontiguousarray(head), library), last))
    if library == "numpy":
        return lambda i: _multiply_one_by_one(pairs)
    multiply = _multiply_all
    if library == "jax":
        import jax

        multiply = jax.jit(multiply)
    return lambda i: finish(multiply(pairs), library)


def _multiply_one_by_one(pairs: list[tuple[Any, Any]]) -> None:
    for a, b in pairs:
        _ = a @ b


def _multiply_all(pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Return all products, or JAX and MLX would leave them out."""
    return [a @ b for a, b in pairs]
