"""Registrations with the JAX linker."""

from collections.abc import Callable
from typing import Any, cast

import jax
from pytensor.compile.builders import OpFromGraph
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.jax.linker import JAXLinker

from pytensor_rope.base import LayerOp
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = jax_funcify.dispatch(OpFromGraph)


@jax_funcify.register(LayerOp)
def _(op: LayerOp, **kwargs: Any) -> Callable[..., Any]:
    if has_unknown_shape(op):
        return specialized(op, "JAX", jax_funcify)
    lowered: Callable[..., Any] = _funcify_op_from_graph(op, **kwargs)
    return lowered


class DonatingJAXLinker(JAXLinker):
    """A JAX linker that lets updates of shared variables reuse the memory of their old values."""

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Compile ``fn``, donating the inputs that updates replace."""
        updates = getattr(self.fgraph, "update_mapping", None) or {}
        if self.scalar_shape_inputs or not updates:
            return cast(Callable[..., Any], super().jit_compile(fn))
        return cast(Callable[..., Any], jax.jit(fn, donate_argnums=sorted(set(updates.values()))))
