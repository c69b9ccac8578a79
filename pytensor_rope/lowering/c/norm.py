"""RMSNorm and its gradient in C."""

from typing import Any, override

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply
from pytensor.link.c.params_type import ParamsType

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.c.kernel import Kernel, c_type, register, stored_and_computed
from pytensor_rope.norm import RMSNormalize, RMSNormalizeGradient


class _NormKernel(Kernel):
    """Shared by the normalisation and its gradient: x comes before the weight, which may be missing."""

    params_type = ParamsType(epsilon=ps.float64, unit_offset=ps.bool)
    headers = ("parallel.h", "norm.h")
    n_before_weight: int

    def __init__(self, epsilon: float, unit_offset: bool) -> None:
        self.epsilon = epsilon
        self.unit_offset = unit_offset

    @override
    def template_types(self, node: Apply[Any]) -> list[str]:
        x, *weight = node.inputs[self.n_before_weight - 1 :]
        return stored_and_computed(x.type.dtype) + [c_type(w.type.dtype) for w in weight]

    def _normalize(self, x: Any) -> tuple[Any, Any]:
        wide = x.astype(computation_dtype(x.dtype.name))
        mean_square = np.mean(wide * wide, axis=-1, keepdims=True)
        r = 1 / np.sqrt(mean_square + wide.dtype.type(self.epsilon))
        return wide * r, r

    def _scale(self, x: Any, weight: Any) -> Any:
        if weight.shape != x.shape[-1:]:
            raise ValueError("weight must have one value a feature of x")
        dtype = computation_dtype(x.dtype.name)
        return 1 + weight.astype(dtype) if self.unit_offset else weight.astype(x.dtype).astype(dtype)

    def _rounded(self, normalized: Any, dtype: Any) -> Any:
        return normalized if self.unit_offset else normalized.astype(dtype).astype(normalized.dtype)


class RMSNormalizeKernel(_NormKernel):
    """Divide each row by its root mean square, and scale it."""

    __props__ = ("epsilon", "unit_offset")
    function = "rms_normalize"
    n_before_weight = 1

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        x, *weight = inputs
        out, _ = self._normalize(x)
        for w in weight:
            out = self._rounded(out, x.dtype) * self._scale(x, w)
        output_storage[0][0] = out.astype(x.dtype)


class RMSNormalizeGradientKernel(_NormKernel):
    """The gradients for x and, if there is one, the weight."""

    __props__ = ("epsilon", "unit_offset")
    function = "rms_normalize_gradient"
    n_before_weight = 2

    @override
    def make_node(self, *inputs: Any) -> Apply[Any]:
        return Apply(self, list(inputs), [x.type() for x in inputs[1:]])

    @override
    def infer_shape(self, node: Apply[Any], shapes: Any) -> list[Any]:
        return list(shapes[1:])

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        g, x, *weight = inputs
        if g.shape != x.shape:
            raise ValueError("the cotangent must have x's shape")
        normalized, r = self._normalize(x)
        g = g.astype(normalized.dtype)
        scaled = g * self._scale(x, weight[0]) if weight else g
        along = np.mean(scaled * normalized, axis=-1, keepdims=True)
        output_storage[0][0] = (r * (scaled - normalized * along)).astype(x.dtype)
        if weight:
            products = g * self._rounded(normalized, x.dtype)
            output_storage[1][0] = products.sum(axis=tuple(range(x.ndim - 1))).astype(weight[0].dtype)


def _lower_normalize(op: RMSNormalize, node: Apply[Any]) -> list[Any] | None:
    _, *weight = node.inputs
    if not _are_vectors(weight):
        return None
    return RMSNormalizeKernel(op.epsilon, op.unit_offset).make_node(*node.inputs).outputs


def _lower_gradient(op: RMSNormalizeGradient, node: Apply[Any]) -> list[Any] | None:
    g, x, *weight = node.inputs
    if (g.type.dtype, g.type.ndim) != (x.type.dtype, x.type.ndim) or not _are_vectors(weight):
        return None
    return RMSNormalizeGradientKernel(op.epsilon, op.unit_offset).make_node(*node.inputs).outputs


def _are_vectors(weight: list[Any]) -> bool:
    """Return whether the weight, if there is one, has no batch axes of its own."""
    return all(w.type.ndim == 1 for w in weight)


register(RMSNormalize, _lower_normalize)
register(RMSNormalizeGradient, _lower_gradient)
