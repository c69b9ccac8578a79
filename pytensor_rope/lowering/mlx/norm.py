"""Root-mean-square normalisation on MLX."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch.basic import mlx_funcify

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.mlx.generic import mlx_dtype, on_cpu
from pytensor_rope.norm import RMSNormalize, check_features


@mlx_funcify.register(RMSNormalize)
def _(op: RMSNormalize, **kwargs: Any) -> Callable[..., Any]:
    dtype = mlx_dtype(computation_dtype(op.input_types[0].dtype))

    def rms_normalize(x: Any, *weight: Any) -> Any:
        if not weight:
            return normalized(x, None)
        (w,) = weight
        check_features(x.shape[-1], w.shape[-1])
        if op.unit_offset:
            return normalized(x.astype(dtype), 1 + w.astype(dtype)).astype(x.dtype)
        return normalized(x, w.astype(x.dtype))

    def normalized(x: Any, weight: Any | None) -> Any:
        if not on_cpu():
            return mx.fast.rms_norm(x, weight, op.epsilon)
        wide = x.astype(dtype)
        r = mx.rsqrt(mx.mean(mx.square(wide), axis=-1) + op.epsilon)
        # A new axis keeps mx.compile from fusing the root into the loop over x, where each element takes one.
        scaled = (wide * mx.expand_dims(r, -1)).astype(x.dtype)
        return scaled if weight is None else scaled * weight

    return rms_normalize
