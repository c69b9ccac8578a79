"""Layer normalisation, for the decoders that were made before RMSNorm or do without it."""

from typing import cast

import pytensor.tensor as pt

from pytensor_rope.base import Tensor, computation_dtype, pinned


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float) -> Tensor:
    r"""
    Subtract the mean over the last axis, divide by the standard deviation, then scale and shift.

    .. math::

        y = \frac{x - \bar x}{\sqrt{\overline{(x - \bar x)^2} + \epsilon}} \odot w + b

    All of it is in float32 for float16 and float32 inputs and in float64 for float64 ones, and the output in
    the input's dtype.

    Parameters
    ----------
    x : tensor
        Shape ``(..., n)``, of a float dtype.
    weight, bias : tensor
        Shape ``(n,)``, or what broadcasts with ``x``.
    epsilon : float
        Constant under the root.

    Returns
    -------
    tensor
        As ``x``.

    References
    ----------
    .. [1] Ba, Kiros and Hinton, "Layer Normalization", arXiv 1607.06450.
    """
    dtype = computation_dtype(x.dtype)
    centered = x.astype(dtype) - _mean(x.astype(dtype))
    r = pinned(1, dtype) / pt.sqrt(_mean(centered * centered) + pinned(epsilon, dtype))
    y = centered * r * weight.astype(dtype)
    if bias is not None:
        y = y + bias.astype(dtype)
    return cast(Tensor, y.astype(x.dtype))


def _mean(x: Tensor) -> Tensor:
    return cast(Tensor, x.mean(axis=-1, keepdims=True, dtype=x.dtype, acc_dtype=x.dtype))
