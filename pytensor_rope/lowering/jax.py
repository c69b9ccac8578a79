"""Registrations with the JAX linker."""

from collections.abc import Callable
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.link.jax.dispatch.basic import jax_funcify

from pytensor_rope.base import LayerOp
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = jax_funcify.dispatch(OpFromGraph)


@jax_funcify.register(LayerOp)
def _(op: LayerOp, **kwargs: Any) -> Callable[..., Any]:
    if has_unknown_shape(op):
        return specialized(op, "JAX", jax_funcify)
    lowered: Callable[..., Any] = _funcify_op_from_graph(op, **kwargs)
    return lowered
