"""Ops that JAX gets as their inner graphs, made anew for the shapes that it shows."""

from collections.abc import Callable
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.jax.dispatch.shape import JAXShapeTuple
from pytensor.tensor.basic import MakeVector

from pytensor_rope.base import LayerOp, LayerOpDerivative
from pytensor_rope.lowering.jax.linker import jax_mode
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = jax_funcify.dispatch(OpFromGraph)


@jax_funcify.register(LayerOp)
@jax_funcify.register(LayerOpDerivative)
def inner_graph(op: OpFromGraph, **kwargs: Any) -> Callable[..., Any]:
    """Return a function of traced arrays that computes the op's inner graph."""
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
