"""Activation functions in C."""

from typing import Any, override

import numpy as np
from pytensor.graph.basic import Apply

from pytensor_rope.activations import SiLU, TanhGELU
from pytensor_rope.base import FLOAT_DTYPES, computation_dtype
from pytensor_rope.lowering.c.kernel import Kernel, register


class ActivationKernel(Kernel):
    """One activation function of each element."""

    __props__ = ("name",)
    headers = ("exp.h", "activations.h")
    function = "activate"

    def __init__(self, name: str) -> None:
        self.name = name

    @override
    def template_types(self, node: Apply[Any]) -> list[str]:
        return [self.name, *super().template_types(node)]

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        (x,) = inputs
        wide = x.astype(computation_dtype(x.dtype.name))
        z = wide
        if self.name == "TanhGELU":
            z = wide.dtype.type(np.sqrt(8 / np.pi)) * (wide + wide.dtype.type(0.044715) * wide**3)
        e = np.exp(-np.abs(z))
        output_storage[0][0] = (wide * np.where(z < 0, e, 1) / (1 + e)).astype(x.dtype)


def _lower(op: SiLU | TanhGELU, node: Apply[Any]) -> list[Any] | None:
    if node.inputs[0].type.dtype not in FLOAT_DTYPES:
        return None
    return ActivationKernel(type(op).__name__).make_node(*node.inputs).outputs


register(SiLU, _lower)
register(TanhGELU, _lower)
