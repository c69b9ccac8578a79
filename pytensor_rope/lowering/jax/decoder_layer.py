"""A decoder layer on JAX: what layers share computed once, and the cache written in place."""

from collections.abc import Callable
from typing import Any

import jax
from pytensor.link.jax.dispatch.basic import jax_funcify

from pytensor_rope.decoder_layer import DecoderLayer
from pytensor_rope.lowering.jax.generic import inner_graph


@jax_funcify.register(DecoderLayer)
def _(op: DecoderLayer, **kwargs: Any) -> Callable[..., Any]:
    lowered = inner_graph(op, **kwargs)
    n_own = 1 + len(op.weights)

    def layer(*arrays: Any) -> Any:
        # XLA would compute the angles and positions anew wherever they are used.
        shared = jax.lax.optimization_barrier(arrays[n_own:])
        # Whoever writes the new keys and values into the cache now waits until it has been read. Otherwise
        # XLA might write first, and would read from a copy of the whole cache.
        return jax.lax.optimization_barrier(lowered(*arrays[:n_own], *shared))

    return layer
