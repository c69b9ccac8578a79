"""Registrations with the MLX linker."""

from collections.abc import Callable
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.link.mlx.dispatch.basic import mlx_funcify

from pytensor_rope.base import LayerOp, LayerOpDerivative
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = mlx_funcify.dispatch(OpFromGraph)


@mlx_funcify.register(LayerOp)
@mlx_funcify.register(LayerOpDerivative)
def _(op: OpFromGraph, **kwargs: Any) -> Callable[..., Any]:
    if has_unknown_shape(op):
        return specialized(op, "MLX", mlx_funcify)
    lowered: Callable[..., Any] = _funcify_op_from_graph(op, **kwargs)
    return lowered
