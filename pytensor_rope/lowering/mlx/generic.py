"""Ops of ours by their inner graphs, and what MLX can't take of PyTensor's."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import get_mode
from pytensor.link.mlx.dispatch.basic import mlx_funcify
from pytensor.scalar.basic import Invert

from pytensor_rope.base import LayerOp, LayerOpDerivative
from pytensor_rope.lowering.specialize import has_unknown_shape, specialized

_funcify_op_from_graph = mlx_funcify.dispatch(OpFromGraph)


@mlx_funcify.register(LayerOp)
@mlx_funcify.register(LayerOpDerivative)
def by_inner_graph(op: OpFromGraph, **kwargs: Any) -> Callable[..., Any]:
    """Return the function of MLX arrays that ``op``'s inner graph is."""
    if has_unknown_shape(op):
        return specialized(op, get_mode("MLX"), mlx_funcify)
    lowered: Callable[..., Any] = _funcify_op_from_graph(op, **kwargs)
    return lowered


@mlx_funcify.register(Invert)
def _(op: Invert, **kwargs: Any) -> Callable[[Any], Any]:
    # What mx.bitwise_invert does, which mx.export_function can't write to a file.
    def invert(x: Any) -> Any:
        if x.dtype == mx.bool_:
            return mx.logical_not(x)
        ones = np.asarray(-1).astype(str(x.dtype).removeprefix("mlx.core."))
        return mx.bitwise_xor(x, mx.array(ones))

    return invert


def on_cpu() -> bool:
    """Return whether MLX computes on a CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def mlx_dtype(name: str) -> Any:
    """Return MLX's dtype of a name."""
    return getattr(mx, name)
