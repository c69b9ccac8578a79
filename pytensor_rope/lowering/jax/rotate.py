"""The rotation of pairs on JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.link.jax.dispatch.basic import jax_funcify

from pytensor_rope.base import computation_dtype
from pytensor_rope.rotate import Rotate, check_angles, check_batch, check_pairs, check_sequence


@jax_funcify.register(Rotate)
def _(op: Rotate, **kwargs: Any) -> Callable[[Any, Any, Any], Any]:
    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        head_dim = x.shape[-1]
        d = head_dim if op.rotary_dim is None else op.rotary_dim
        check_sequence(x.shape[-2], cos.shape[-2])
        check_batch(x.shape[:-2], cos.shape[:-2])
        check_pairs(d, head_dim)
        check_angles(d, cos.shape, sin.shape)
        if d == 0:
            return x
        dtype = computation_dtype(str(x.dtype))
        # The pairs' dimensions are start, start + stride and so on.
        starts, stride = ((0, d // 2), 1) if op.pairing == "half" else ((0, 1), 2)
        a, b = (x[..., start : start + (d // 2 - 1) * stride + 1 : stride].astype(dtype) for start in starts)
        # XLA would compute the angles anew for each head.
        cos, sin = jax.lax.optimization_barrier((cos.astype(dtype), sin.astype(dtype)))
        rotated = (a * cos - b * sin).astype(x.dtype), (b * cos + a * sin).astype(x.dtype)
        first, second = (
            _placed(part, start, stride, head_dim) for part, start in zip(rotated, starts, strict=True)
        )
        out = first + second
        return out if d == head_dim else out + _placed(x[..., d:], d, 1, head_dim)

    return rotate


def _placed(x: Any, start: int, stride: int, size: int) -> Any:
    """
    Return an array of ``size`` along its last axis that holds ``x`` there, and -0 elsewhere.

    -0 changes nothing that is added to it, so the sum of the parts is what joining them gives, bit by bit:
    XLA adds in one loop what it would join in several.
    """
    end = size - start - (x.shape[-1] - 1) * stride - 1
    unpadded: Sequence[tuple[int, int, int]] = [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, np.asarray(-0.0, x.dtype), [*unpadded, (start, end, stride - 1)])
