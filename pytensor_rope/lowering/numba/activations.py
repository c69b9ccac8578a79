"""Activation functions in Numba."""

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pytensor_rope.activations import SiLU, TanhGELU
from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.numba.exp import exp_below_0
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key


@register_funcify_and_cache_key(SiLU)
@register_funcify_and_cache_key(TanhGELU)
def _activation(op: SiLU | TanhGELU, **kwargs: Any) -> Lowered:
    (x_type,) = op.input_types
    computed = computation_dtype(x_type.dtype)
    dtype, x_dtype = np.dtype(computed).type, np.dtype(x_type.dtype).type
    exp = exp_below_0(computed)
    is_silu = isinstance(op, SiLU)
    root, cubic = dtype(np.sqrt(8 / np.pi)), dtype(0.044715)

    # Python's division, which raises where NumPy's gives infinity, is not vectorized.
    @numba_njit(error_model="numpy")
    def activated(x: Any) -> Any:
        # (1 + tanh(z)) / 2 is the logistic function of 2 z.
        z = x if is_silu else root * (x + cubic * (x * x * x))
        e = exp(-abs(z))
        return x * ((e if z < dtype(0) else dtype(1)) / (dtype(1) + e))

    @numba_njit
    def activate(x: Any) -> Any:
        flat = np.ascontiguousarray(x).reshape(-1)
        out = np.empty(flat.size, dtype=x_dtype)
        for i in range(flat.size):
            out[i] = x_dtype(activated(dtype(flat[i])))
        return out.reshape(x.shape)

    return activate, cache_key(op, x_type.dtype)
