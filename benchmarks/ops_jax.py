"""Rotation and RMSNorm as one writes them in JAX. Nothing is imported before it is called."""

from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.measure import Outputs, finish

BASE = 10_000.0
EPSILON = 1e-6


def waiting(function: Callable[..., Any]) -> Callable[..., Outputs]:
    """Return a function that waits for its outputs, in a list."""

    def call(*arrays: Any) -> Outputs:
        outputs = finish(function(*arrays), "jax")
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    return call


@cache
def jitted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    import jax

    return jax.jit(function, **options)


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


def rms_norm(x: Any, weight: Any, epsilon: float = EPSILON) -> Any:
    import jax
    import jax.numpy as jnp

    wide = x.astype("float32")
    r = jax.lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True, dtype=jnp.float32) + jnp.float32(epsilon))
    return (wide * r).astype(x.dtype) * weight


def rotation(x: Any, positions: Any) -> Any:
    """Rotate by positions: as one function, XLA would take cosines and sines anew for each head."""
    return jitted(rotate)(x, *jitted_angles(positions, x.shape[-1]))


def rotation_of_angles(x: Any, cos: Any, sin: Any) -> Any:
    return jitted(rotate)(x, cos, sin)


def rotation_backward(g: Any, positions: Any) -> Any:
    return jitted(_rotate_backward)(g, *jitted_angles(positions, g.shape[-1]))


def normalization(x: Any, weight: Any) -> Any:
    return jitted(rms_norm)(x, weight)


def normalization_backward(g: Any, x: Any, weight: Any) -> Any:
    return jitted(_rms_norm_backward)(g, x, weight)


def jitted_angles(positions: Any, head_dim: int, base: float = BASE) -> tuple[Any, Any]:
    computed: tuple[Any, Any] = jitted(angles, static_argnums=(1, 2))(positions, head_dim, base)
    return computed


def _rotate_backward(g: Any, cos: Any, sin: Any) -> Any:
    import jax

    # Linear in x, so any x gives the gradient.
    return jax.vjp(lambda x: rotate(x, cos, sin), g)[1](g)[0]


def _rms_norm_backward(g: Any, x: Any, weight: Any) -> Any:
    import jax

    return jax.vjp(rms_norm, x, weight)[1](g)
