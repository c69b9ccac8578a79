"""RMSNorm and its gradient in Numba."""

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key, leading
from pytensor_rope.norm import RMSNormalize, RMSNormalizeGradient


@register_funcify_and_cache_key(RMSNormalize)
def _rms_normalize(op: RMSNormalize, **kwargs: Any) -> Lowered:
    x_type, *weight_type = op.input_types
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    x_dtype = np.dtype(x_type.dtype).type
    epsilon, offset = dtype(op.epsilon), dtype(1 if op.unit_offset else 0)

    @numba_njit
    def normalize(x: Any, weight: Any) -> Any:
        n = x.shape[-1]
        rows = np.ascontiguousarray(x).reshape((leading(x, 1), n))
        out = np.empty(rows.shape, dtype=x_dtype)
        for row in range(rows.shape[0]):
            r = reciprocal_rms(rows, row)
            for i in range(n):
                out[row, i] = x_dtype(dtype(rows[row, i]) * r * (offset + weight[i]))
        return out.reshape(x.shape)

    @numba_njit
    def reciprocal_rms(rows: Any, row: Any) -> Any:
        total = dtype(0)
        for i in range(rows.shape[1]):
            total += dtype(rows[row, i]) * dtype(rows[row, i])
        return dtype(1) / np.sqrt(total / dtype(rows.shape[1]) + epsilon)

    @numba_njit
    def scaled(x: Any, weight: Any) -> Any:
        if weight.shape[0] != x.shape[-1]:
            raise ValueError("weight must have one value a feature of x")
        return normalize(x, weight.astype(dtype))

    @numba_njit
    def unscaled(x: Any) -> Any:
        return normalize(x, np.full(x.shape[-1], dtype(1) - offset))

    return scaled if weight_type else unscaled, cache_key(op, x_type.dtype, len(weight_type))


@register_funcify_and_cache_key(RMSNormalizeGradient)
def _rms_normalize_gradient(op: RMSNormalizeGradient, **kwargs: Any) -> Lowered:
    _, x_type, *weight_type = op.input_types
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    x_dtype = np.dtype(x_type.dtype).type
    epsilon, offset = dtype(op.epsilon), dtype(1 if op.unit_offset else 0)

    @numba_njit
    def gradient(g: Any, x: Any, weight: Any) -> Any:
        n = x.shape[-1]
        if g.shape != x.shape or weight.shape[0] != n:
            raise ValueError("x, its weight and the gradient don't fit together")
        rows = np.ascontiguousarray(x).reshape((leading(x, 1), n))
        g_rows = np.ascontiguousarray(g).reshape(rows.shape)
        gx, gw = np.empty(rows.shape, dtype=x_dtype), np.zeros(n, dtype=dtype)
        for row in range(rows.shape[0]):
            square, along = dtype(0), dtype(0)
            for i in range(n):
                value = dtype(rows[row, i])
                square += value * value
                along += dtype(g_rows[row, i]) * (offset + weight[i]) * value
            r = dtype(1) / np.sqrt(square / dtype(n) + epsilon)
            along = along * r / dtype(n)
            for i in range(n):
                normalized = dtype(rows[row, i]) * r
                g_i = dtype(g_rows[row, i])
                gx[row, i] = x_dtype(r * (g_i * (offset + weight[i]) - normalized * along))
                gw[i] += g_i * normalized
        return gx.reshape(x.shape), gw

    if weight_type:
        w_dtype = np.dtype(weight_type[0].dtype).type

        @numba_njit
        def scaled(g: Any, x: Any, weight: Any) -> Any:
            gx, gw = gradient(g, x, weight.astype(dtype))
            return gx, gw.astype(w_dtype)

        return scaled, cache_key(op, x_type.dtype, weight_type[0].dtype)

    @numba_njit
    def unscaled(g: Any, x: Any) -> Any:
        gx, _ = gradient(g, x, np.full(x.shape[-1], dtype(1) - offset))
        return gx

    return unscaled, cache_key(op, x_type.dtype)
