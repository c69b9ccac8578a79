"""The activation functions of feed-forward networks."""

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any, cast, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pytensor_rope.base import BroadcastingLayerOp, Tensor, pinned


class _Activation(BroadcastingLayerOp):
    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]


class SiLU(_Activation):
    r""":math:`x \sigma(x)`, element by element."""

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        (x,) = inputs
        return [x * pt.sigmoid(x)]


class TanhGELU(_Activation):
    r""":math:`\frac x2 (1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715 x^3)))`, element by element."""

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        (x,) = inputs
        half, one, root, cubic = (pinned(value, x.dtype) for value in (0.5, 1, sqrt(2 / pi), 0.044715))
        return [half * x * (one + pt.tanh(root * (x + cubic * (x * x * x))))]


def silu(x: Tensor) -> Tensor:
    """Return :class:`SiLU` of ``x``."""
    return cast(Tensor, SiLU()(x))


def gelu(x: Tensor) -> Tensor:
    r"""Return :math:`x \Phi(x)`, with the normal distribution function (Hendrycks, arXiv 1606.08415)."""
    half, one, root = (pinned(value, x.dtype) for value in (0.5, 1, sqrt(0.5)))
    return cast(Tensor, half * x * (one + pt.erf(x * root)))


def gelu_tanh(x: Tensor) -> Tensor:
    """Return :class:`TanhGELU` of ``x``, which is near :func:`gelu`."""
    return cast(Tensor, TanhGELU()(x))


def relu(x: Tensor) -> Tensor:
    """Return x where it is positive, and 0."""
    return cast(Tensor, pt.maximum(x, pinned(0, x.dtype)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}
