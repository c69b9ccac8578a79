"""Rebuild an op for the shapes that JAX and MLX show while they trace."""

from collections.abc import Callable
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.tensor.type import TensorType

from pytensor_rope.base import LayerOp


def specialized(
    op: OpFromGraph,
    mode: Mode,
    funcify: Callable[..., Any],
    prepare: Callable[[FunctionGraph], None] | None = None,
) -> Callable[..., Any]:
    """
    Return a function of traced arrays that lowers ``op``'s graph for their concrete shapes.

    A graph built from known shapes has constant slices, ranges and frequencies where one built from
    unknown shapes has symbolic ones that JAX and MLX can't take. ``prepare`` may change the graph before
    it is rewritten.
    """

    def call(*arrays: Any) -> Any:
        # Nothing is kept from one trace to the next: constants made in a trace belong to it.
        fgraph = _for_shapes(op, [tuple(array.shape) for array in arrays])
        if prepare is not None:
            prepare(fgraph)
        mode.optimizer.rewrite(fgraph)
        outputs = funcify(fgraph)(*arrays)
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def has_unknown_shape(op: OpFromGraph) -> bool:
    """Return whether any input's shape is not fully known before it runs."""
    return any(None in input_type.shape for input_type in op.input_types)


def _for_shapes(op: OpFromGraph, shapes: list[tuple[int, ...]]) -> FunctionGraph:
    input_types = [
        TensorType(input_type.dtype, shape) for input_type, shape in zip(op.input_types, shapes, strict=True)
    ]
    if isinstance(op, LayerOp):
        props = {name: getattr(op, name) for name in op.__props__}
        return type(op)(input_types=input_types, **props).fgraph.unfreeze()
    generic = op.fgraph.unfreeze()
    inputs = [input_type() for input_type in input_types]
    replacements = dict(zip(generic.inputs, inputs, strict=True))
    outputs = clone_replace(generic.outputs, replacements, rebuild_strict=False)
    return FunctionGraph(inputs, outputs, clone=False)
