"""Root-mean-square normalisation."""

from collections.abc import Sequence
from typing import Any, cast, override

import numpy as np
import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply
from pytensor.tensor import TensorLike
from pytensor.tensor.shape import specify_shape

from pytensor_rope.base import (
    BroadcastingLayerOp,
    LayerOp,
    Tensor,
    VariadicLayer,
    computation_dtype,
    float_tensor,
    pinned,
    resolve_name,
)
from pytensor_rope.checks import positive_number, whole_number
from pytensor_rope.parameters import Parameter, parameter


class RMSNormalize(BroadcastingLayerOp):
    """
    Divide ``x`` by the root of its mean square over the last axis, then scale by ``weight`` if given.

    With ``unit_offset`` the scale is ``1 + weight``, applied before the cast to x's dtype (Gemma);
    without, the normalised value is cast first (Llama).
    """

    __props__ = ("epsilon", "unit_offset")

    epsilon: float
    unit_offset: bool

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        x, *weight = inputs
        dtype = computation_dtype(x.dtype)
        normalized, _ = _normalize(x.astype(dtype), self.epsilon)
        if not weight:
            return [normalized.astype(x.dtype)]
        (w,) = weight
        check_features(x.type.shape[-1], w.type.shape[-1])
        if self.unit_offset:
            return [(normalized * (pinned(1, dtype) + w.astype(dtype))).astype(x.dtype)]
        return [normalized.astype(x.dtype) * w.astype(x.dtype)]

    @override
    def broadcasts(self, batched: list[bool]) -> bool:
        return batched[0] and not any(batched[1:])

    @override
    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradient = RMSNormalizeGradient(epsilon=self.epsilon, unit_offset=self.unit_offset)
        gradients: list[Any] = gradient(cotangents[0], *inputs, return_list=True)
        return gradients

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]


class RMSNormalizeGradient(LayerOp):
    r"""
    The gradients of :class:`RMSNormalize` for ``x`` and, if given, ``weight``.

    With :math:`r = 1/\sqrt{\overline{x^2} + \epsilon}`, :math:`\hat x = r x` and :math:`\hat g` the
    cotangent of :math:`\hat x`, that of x is :math:`r(\hat g - \hat x\,\overline{\hat g \hat x})`: no
    power of r above the first, so a row of zeros has a finite gradient.
    """

    __props__ = ("epsilon", "unit_offset")

    epsilon: float
    unit_offset: bool

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        g, x, *weight = inputs
        dtype = computation_dtype(x.dtype)
        normalized, r = _normalize(x.astype(dtype), self.epsilon)
        g_wide = g.astype(dtype)
        if not weight:
            return [_through_normalization(g_wide, normalized, r).astype(x.dtype)]
        (w,) = weight
        if self.unit_offset:
            scale, scaled = pinned(1, dtype) + w.astype(dtype), normalized
        else:
            scale, scaled = (
                w.astype(x.dtype).astype(dtype),
                normalized.astype(x.dtype).astype(dtype),
            )
        gx = _through_normalization(g_wide * scale, normalized, r)
        gw = (g_wide * scaled).sum(axis=tuple(range(x.ndim - 1)), dtype=dtype, acc_dtype=dtype)
        return [gx.astype(x.dtype), gw.astype(w.dtype)]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return list(shapes[1:])


class RMSNorm(VariadicLayer):
    r"""
    Root-mean-square normalisation over the last axis.

    .. math::

        y = \frac{x}{\sqrt{\frac{1}{n}\sum_i x_i^2 + \epsilon}} \odot w

    The statistics are in float32 for float16 and float32 inputs and in float64 for float64 ones; the
    output has the input's dtype. float32 inputs beyond 1.8e19 and float64 ones beyond 1.3e154 overflow
    when they are squared.

    Parameters
    ----------
    name : str, optional
        Name of the layer and prefix of its parameter's. Default is "RMSNorm".
    n_in : int, optional
        Size of the last axis. Taken from the first input when omitted.
    epsilon : float, optional
        Constant under the root, in the statistics' dtype. Default is 1e-6.
    affine : bool, optional
        Scale by the learned weight :math:`w`. Default is True.
    unit_offset : bool, optional
        Scale by :math:`1 + w` before the cast to the input's dtype, as Gemma does, with :math:`w` zero at
        first. Otherwise the normalised value is cast before it is scaled, as Llama does, with :math:`w`
        one at first. Default is False.

    Attributes
    ----------
    weight : Parameter or None
        The weight, ``(n_in,)`` in floatX; None without ``affine`` or before the size is known.

    Raises
    ------
    ValueError
        If ``epsilon`` isn't positive in the statistics' dtype, if ``n_in`` isn't positive or contradicts
        an input, if no size is known, or if a residual isn't of the input's dtype and rank.
    TypeError
        If ``name`` isn't a string, ``n_in`` no integer or ``epsilon`` no number, an input isn't of a float
        dtype, or there are more than two.

    References
    ----------
    .. [1] Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import RMSNorm
    >>> norm = RMSNorm("attention_norm", n_in=64)
    >>> norm(pt.tensor("hidden", shape=(None, 64), dtype="float16")).dtype
    'float16'
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        n_in: int | None = None,
        epsilon: float = 1e-6,
        affine: bool = True,
        unit_offset: bool = False,
    ) -> None:
        self.name = resolve_name(name, type(self).__name__, "n_in")
        self.n_in = None if n_in is None else whole_number("n_in", n_in, least=1)
        self.epsilon = _check_epsilon(epsilon, "float64")
        self.affine = affine
        self.unit_offset = unit_offset
        self.weight: Parameter | None = None
        if affine and self.n_in is not None:
            self.weight = self._initial_weight(self.n_in)

    def __call__(self, *inputs: TensorLike) -> Tensor:
        """
        Normalise ``x``, after adding ``residual`` if given.

        Parameters
        ----------
        x : tensor
            Shape ``(..., n_in)``.
        residual : tensor, optional
            As ``x``.

        Returns
        -------
        tensor
            As ``x``.
        """
        if len(inputs) not in (1, 2):
            raise TypeError(f"{self.name} takes x and optionally a residual; got {len(inputs)} inputs.")
        x = float_tensor(inputs[0], "x")
        if len(inputs) == 2:
            residual = float_tensor(inputs[1], "residual")
            if residual.dtype != x.dtype or residual.ndim != x.ndim:
                raise ValueError(
                    f"residual must have x's dtype and rank; got {residual.type} for an x of {x.type}."
                )
            x = x + residual
        out = rms_norm(
            x,
            self._resolve_weight(x),
            epsilon=self.epsilon,
            unit_offset=self.unit_offset,
        )
        out.name = f"{self.name}_output"
        return out

    def _resolve_weight(self, x: Tensor) -> Parameter | None:
        static = x.type.shape[-1] if x.ndim else None
        if None not in (static, self.n_in) and static != self.n_in:
            raise ValueError(f"{self.name} has n_in={self.n_in}, but the input's last axis is {static}.")
        if self.affine and self.weight is None:
            if static is None:
                raise ValueError(
                    f"{self.name} can't take n_in from an input whose last axis is not known. Pass n_in, "
                    f"or give the input a static last axis."
                )
            self.n_in = static
            self.weight = self._initial_weight(static)
        return self.weight

    def _initial_weight(self, n_in: int) -> Parameter:
        mean = 0.0 if self.unit_offset else 1.0
        value = np.full(n_in, mean, dtype=config.floatX)
        return parameter(value, f"{self.name}_weight", mean=mean)


def rms_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    *,
    epsilon: float = 1e-6,
    unit_offset: bool = False,
) -> Tensor:
    """
    Normalise ``x`` by the root of its mean square over the last axis.

    Parameters
    ----------
    x : tensor
        Shape ``(..., n)``, float16, float32 or float64.
    weight : tensor, optional
        Shape ``(n,)``. Default is no scale.
    epsilon : float, optional
        Constant under the root, in the statistics' dtype. Default is 1e-6.
    unit_offset : bool, optional
        Scale by ``1 + weight`` before the cast to x's dtype (Gemma) instead of by ``weight`` after it
        (Llama). Default is False.

    Returns
    -------
    tensor
        As ``x``.

    Raises
    ------
    ValueError
        If ``epsilon`` isn't positive in the statistics' dtype, or shapes don't fit.
    TypeError
        If an input isn't of a float dtype.

    References
    ----------
    .. [1] Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import function, rms_norm
    >>> x = pt.tensor("x", shape=(None, None), dtype="float32")
    >>> normalize = function([x], rms_norm(x), backend="numba")
    >>> normalize(np.array([[1000.0, -1000.0]], dtype="float32"))
    array([[ 1., -1.]], dtype=float32)
    """
    x = float_tensor(x, "x")
    if x.ndim < 1:
        raise ValueError("x must have at least one axis to normalise over; got a scalar.")
    epsilon = _check_epsilon(epsilon, computation_dtype(x.dtype))
    op = RMSNormalize(epsilon=epsilon, unit_offset=bool(unit_offset))
    if weight is None:
        return cast(Tensor, op(x))
    w = float_tensor(weight, "weight")
    n = x.type.shape[-1]
    if w.ndim != 1:
        raise ValueError(f"weight must be ({n or 'n'},), one value a feature of x; got {w.type}.")
    n_weight = w.type.shape[0]
    check_features(n, n_weight)
    # What one of them knows holds for the other, or a weight of 1 would broadcast.
    x = specify_shape(x, (*x.type.shape[:-1], n_weight if n is None else n))
    w = specify_shape(w, (n if n_weight is None else n_weight,))
    return cast(Tensor, op(x, w))


def check_features(n: int | None, n_weight: int | None) -> None:
    """Refuse a weight of another size than x's last axis."""
    if None not in (n, n_weight) and n != n_weight:
        raise ValueError(f"weight must be ({n},), one value a feature of x; got ({n_weight},).")


def _normalize(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return ``x`` over its root mean square, and the factor that took it there."""
    mean_square = (x * x).mean(axis=-1, keepdims=True, dtype=x.dtype, acc_dtype=x.dtype)
    r = pinned(1, x.dtype) / pt.sqrt(mean_square + pinned(epsilon, x.dtype))
    return x * r, r


def _through_normalization(g: Tensor, normalized: Tensor, r: Tensor) -> Tensor:
    """Pull a cotangent of the normalised value back to the value that was normalised."""
    along = (g * normalized).mean(axis=-1, keepdims=True, dtype=g.dtype, acc_dtype=g.dtype)
    through: Tensor = r * (g - normalized * along)
    return through


def _check_epsilon(epsilon: float, dtype: str) -> float:
    smallest = np.finfo(dtype).tiny
    epsilon = positive_number("epsilon", epsilon)
    if epsilon < smallest:
        raise ValueError(
            f"epsilon must be at least {smallest:.2g}, the smallest normal {dtype}; got {epsilon!r}."
        )
    return epsilon
