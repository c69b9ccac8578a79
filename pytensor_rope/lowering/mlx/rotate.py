"""The rotation of pairs on MLX, as one loop over x where it is compiled."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch.basic import mlx_funcify

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.mlx.generic import mlx_dtype
from pytensor_rope.rotate import Rotate, check_angles, check_batch, check_pairs, check_sequence


@mlx_funcify.register(Rotate)
def _(op: Rotate, **kwargs: Any) -> Callable[..., Any]:
    dtype = mlx_dtype(computation_dtype(op.input_types[0].dtype))
    of_pair = -2 if op.pairing == "half" else -1

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        d = x.shape[-1] if op.rotary_dim is None else op.rotary_dim
        check_sequence(x.shape[-2], cos.shape[-2])
        check_batch(x.shape[:-2], cos.shape[:-2])
        check_pairs(d, x.shape[-1])
        check_angles(d, cos.shape, sin.shape)
        pairs = mx.unflatten(x[..., :d], -1, (2, d // 2) if of_pair == -2 else (d // 2, 2)).astype(dtype)
        cos, sin = cos.astype(dtype), sin.astype(dtype)
        turned = pairs * mx.expand_dims(cos, of_pair) + _swapped(pairs, of_pair) * mx.stack(
            [-sin, sin], axis=of_pair
        )
        rotated = mx.flatten(turned.astype(x.dtype), -2, -1)
        return rotated if d == x.shape[-1] else mx.concatenate([rotated, x[..., d:]], axis=-1)

    return rotate


def _swapped(pairs: Any, axis: int) -> Any:
    return pairs[..., ::-1, :] if axis == -2 else pairs[..., ::-1]
