"""The rotation in C."""

from typing import Any, override

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply
from pytensor.link.c.params_type import ParamsType

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.c.kernel import Kernel, register
from pytensor_rope.rotate import Rotate


class RotateKernel(Kernel):
    """Rotate pairs of x's last axis; a ``rotary_dim`` of 0 stands for all of it."""

    __props__ = ("rotary_dim", "adjacent")
    params_type = ParamsType(rotary_dim=ps.int64, adjacent=ps.bool)
    headers = ("parallel.h", "rotate.h")
    function = "rotate"

    def __init__(self, rotary_dim: int, adjacent: bool) -> None:
        self.rotary_dim = rotary_dim
        self.adjacent = adjacent

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        x, cos, sin = inputs
        d = self.rotary_dim or x.shape[-1]
        if d % 2 or d > x.shape[-1] or cos.shape[-1] != d // 2 or cos.shape[-2] != x.shape[-2]:
            raise ValueError("x and the angles it is rotated by don't fit together")
        if self.adjacent:
            at_first, at_second = slice(0, d, 2), slice(1, d, 2)
        else:
            at_first, at_second = slice(0, d // 2), slice(d // 2, d)
        first, second = (x[..., at].astype(cos.dtype) for at in (at_first, at_second))
        out = np.array(x)
        out[..., at_first] = first * cos - second * sin
        out[..., at_second] = second * cos + first * sin
        output_storage[0][0] = out


def _lower(op: Rotate, node: Apply[Any]) -> list[Any] | None:
    x, cos, sin = node.inputs
    dtype = computation_dtype(x.type.dtype)
    if (cos.type.dtype, sin.type.dtype) != (dtype, dtype) or not _broadcasts_over(x, cos, sin):
        return None
    kernel = RotateKernel(op.rotary_dim or 0, op.pairing == "adjacent")
    return kernel.make_node(x, cos, sin).outputs


def _broadcasts_over(x: Any, cos: Any, sin: Any) -> bool:
    """Return whether the angles broadcast over x's leading axes, and x over none of theirs."""
    if cos.type.ndim != sin.type.ndim or cos.type.ndim > x.type.ndim:
        return False
    leading = zip(x.type.shape[-3::-1], cos.type.shape[-3::-1], sin.type.shape[-3::-1], strict=False)
    return all(size != 1 or of_cos == of_sin == 1 for size, of_cos, of_sin in leading)


register(Rotate, _lower)
