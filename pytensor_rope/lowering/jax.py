"""Registrations with the JAX linker."""

from collections.abc import Callable
from typing import Any, cast

import jax
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.jax.dispatch.shape import JAXShapeTuple
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import CAReduce

from pytensor_rope.base import LayerOp, LayerOpDerivative
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = jax_funcify.dispatch(OpFromGraph)


@jax_funcify.register(LayerOp)
@jax_funcify.register(LayerOpDerivative)
def _(op: OpFromGraph, **kwargs: Any) -> Callable[..., Any]:
    if has_unknown_shape(op):
        lowered = specialized(op, jax_mode(), jax_funcify, _restore_shape_vectors)
    else:
        lowered = _funcify_op_from_graph(op, **kwargs)
    dtypes = [output_type.dtype for output_type in op.output_types]

    def as_declared(*arrays: Any) -> Any:
        # Under a plain JAX mode with 64-bit numbers, float32 is summed to float64 in a generated gradient.
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


@node_rewriter([CAReduce])
def _reduce_as_declared(fgraph: FunctionGraph, node: Apply[Any]) -> list[Any] | None:
    """Have the linker return a reduction in the graph's dtype, not in the one to accumulate in."""
    (x,), dtype = node.inputs, node.outputs[0].type.dtype
    if x.type.dtype != dtype or node.op.acc_dtype in (None, dtype):
        return None
    return [node.op.clone(dtype=dtype, acc_dtype=dtype)(x)]


def jax_mode() -> Mode:
    """Return PyTensor's JAX mode, with updates that reuse memory and reductions that keep their dtype."""
    mode = Mode(linker=DonatingJAXLinker(), optimizer=get_mode("JAX")._optimizer)
    # After all rewrites that make reductions, before inner graphs are rewritten in the same way.
    return cast(Mode, mode.register((dfs_rewriter(_reduce_as_declared), 49.5)))
