"""The activation functions of feed-forward networks."""

from collections.abc import Callable
from math import pi, sqrt
from typing import cast

import pytensor.tensor as pt

from pytensor_rope.base import Tensor, pinned


def silu(x: Tensor) -> Tensor:
    r"""Return :math:`x \sigma(x)`."""
    return cast(Tensor, x * pt.sigmoid(x))


def gelu(x: Tensor) -> Tensor:
    r"""Return :math:`x \Phi(x)`, with the normal distribution function (Hendrycks, arXiv 1606.08415)."""
    half, one, root = (pinned(value, x.dtype) for value in (0.5, 1, sqrt(0.5)))
    return cast(Tensor, half * x * (one + pt.erf(x * root)))


def gelu_tanh(x: Tensor) -> Tensor:
    r"""Return :math:`\frac x2 (1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715 x^3)))`, which is near :func:`gelu`."""
    half, one, root, cubic = (pinned(value, x.dtype) for value in (0.5, 1, sqrt(2 / pi), 0.044715))
    return cast(Tensor, half * x * (one + pt.tanh(root * (x + cubic * (x * x * x)))))


def relu(x: Tensor) -> Tensor:
    """Return x where it is positive, and 0."""
    return cast(Tensor, pt.maximum(x, pinned(0, x.dtype)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}
