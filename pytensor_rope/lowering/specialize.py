"""Rebuild an op for the shapes that JAX and MLX show while they trace."""

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import get_mode
from pytensor.tensor.type import TensorType

from pytensor_rope.base import LayerOp


def specialized(op: LayerOp, mode: str, funcify: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a function of traced arrays that lowers ``op``'s graph for their concrete shapes.

    A graph built from known shapes has constant slices, ranges and frequencies where one built from
    unknown shapes has symbolic ones that JAX and MLX can't take.
    """

    def call(*arrays: Any) -> Any:
        # Nothing is kept from one trace to the next: constants made in a trace belong to it.
        shapes = [tuple(array.shape) for array in arrays]
        outputs = _lower(op, shapes, mode, funcify)(*arrays)
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def has_unknown_shape(op: LayerOp) -> bool:
    """Return whether any input's shape is not fully known before it runs."""
    return any(None in input_type.shape for input_type in op.input_types)


def _lower(
    op: LayerOp, shapes: list[tuple[int, ...]], mode: str, funcify: Callable[..., Any]
) -> Callable[..., Any]:
    input_types = [
        TensorType(input_type.dtype, shape) for input_type, shape in zip(op.input_types, shapes, strict=True)
    ]
    props = {name: getattr(op, name) for name in op.__props__}
    fgraph = type(op)(input_types=input_types, **props).fgraph.unfreeze()
    get_mode(mode).optimizer.rewrite(fgraph)
    lowered: Callable[..., Any] = funcify(fgraph)
    return lowered
