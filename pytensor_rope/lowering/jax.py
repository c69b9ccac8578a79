"""Registrations with the JAX linker."""

from collections.abc import Callable
from typing import Any, cast

import jax
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.jax.dispatch.shape import JAXShapeTuple
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.basic import MakeVector

from pytensor_rope.base import LayerOp, LayerOpDerivative
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = jax_funcify.dispatch(OpFromGraph)


@jax_funcify.register(LayerOp)
@jax_funcify.register(LayerOpDerivative)
def _(op: OpFromGraph, **kwargs: Any) -> Callable[..., Any]:
    if has_unknown_shape(op):
        lowered = specialized(op, "JAX", jax_funcify, _restore_shape_vectors)
    else:
        lowered = _funcify_op_from_graph(op, **kwargs)
    dtypes = [output_type.dtype for output_type in op.output_types]

    def as_declared(*arrays: Any) -> Any:
        # With 64-bit numbers on, JAX sums float32 in a generated gradient to float64.
        outputs = lowered(*arrays)
        if len(dtypes) == 1:
            return outputs.astype(dtypes[0])
        return tuple(output.astype(dtype) for output, dtype in zip(outputs, dtypes, strict=True))

    return as_declared


def _restore_shape_vectors(fgraph: FunctionGraph) -> None:
    """Undo the mark that an earlier JAX rewrite put on shapes: constant folding can't read it."""
    for node in fgraph.toposort():
        if isinstance(node.op, JAXShapeTuple):
            (marked,) = node.outputs
            vector = MakeVector(marked.type.dtype).make_node(*node.inputs).outputs[0]
            fgraph.replace(marked, vector, import_missing=True)


class DonatingJAXLinker(JAXLinker):
    """A JAX linker that lets updates of shared variables reuse the memory of their old values."""

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Compile ``fn``, donating the inputs that updates replace."""
        updates = getattr(self.fgraph, "update_mapping", None) or {}
        if self.scalar_shape_inputs or not updates:
            return cast(Callable[..., Any], super().jit_compile(fn))
        return cast(Callable[..., Any], jax.jit(fn, donate_argnums=sorted(set(updates.values()))))
