"""Rotation and RMSNorm as one writes them in JAX. Nothing is imported before it is called."""

from collections.abc import Callable
from typing import Any

from benchmarks.measure import Outputs, finish

BASE = 10_000.0
EPSILON = 1e-6


def jitted(function: Callable[..., Any]) -> Callable[..., Outputs]:
    """Return a function under ``jax.jit`` that waits for its outputs, in a list."""
    import jax

    fast = jax.jit(function)

    def call(*arrays: Any) -> Outputs:
        outputs = finish(fast(*arrays), "jax")
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    return call


def angles(positions: Any, head_dim: int, base: float = BASE) -> tuple[Any, Any]:
    """Return cosines and sines, ``(seq, head_dim // 2)``, of the float32 product."""
    import jax.numpy as jnp

    frequencies = base ** (-jnp.arange(0, head_dim, 2, dtype="float32") / head_dim)
    angle = positions.astype("float32")[..., None] * frequencies
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    import jax.numpy as jnp

    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotary_embedding(x: Any, positions: Any) -> Any:
    """Rotate by positions. Without the barrier, XLA takes cosines and sines anew for each head."""
    import jax

    return rotate(x, *jax.lax.optimization_barrier(angles(positions, x.shape[-1])))


def rotary_embedding_backward(g: Any, positions: Any) -> Any:
    import jax

    # Linear in x, so any x gives the gradient.
    _, pullback = jax.vjp(lambda x: rotary_embedding(x, positions), g)
    return pullback(g)[0]


def rms_norm(x: Any, weight: Any, epsilon: float = EPSILON) -> Any:
    import jax
    import jax.numpy as jnp

    wide = x.astype("float32")
    r = jax.lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True, dtype=jnp.float32) + jnp.float32(epsilon))
    return (wide * r).astype(x.dtype) * weight


def rms_norm_backward(g: Any, x: Any, weight: Any) -> Any:
    import jax

    return jax.vjp(rms_norm, x, weight)[1](g)
