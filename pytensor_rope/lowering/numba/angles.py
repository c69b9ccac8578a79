"""Angles in Numba."""

from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pytensor_rope.angles import Angles
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key

_generic = numba_funcify_and_cache_key.dispatch(OpFromGraph)


@register_funcify_and_cache_key(Angles)
def _angles(op: Angles, node: Any = None, **kwargs: Any) -> Lowered:
    d = op.rotary_dim
    position_dtype = op.input_types[0].dtype
    if d is None or not op.counts_turns(position_dtype):
        lowered: Lowered = _generic(op, node=node, **kwargs)
        return lowered
    n_pair = d // 2
    is_float64 = op.dtype == "float64"
    f = op.turns_of(d, bits=88 if is_float64 else 64)
    f_hi = np.array([word >> 24 if is_float64 else word for word in f], dtype="uint64")
    f_lo = np.array([word & 0xFFFFFF for word in f], dtype="uint64")

    radians = 2 * np.pi / (2**64 if is_float64 else 2**32)

    @numba_njit
    def float32_angle(magnitude: Any, i: Any) -> Any:
        phase = np.uint32((magnitude * f_hi[i]) >> np.uint64(32))
        fold = np.uint32(phase + np.uint32(2**30)) >> np.uint32(31)
        folded = np.int32(np.uint32(phase - np.uint32(fold << np.uint32(31))))
        sign = np.float32(1) - np.float32(2) * np.float32(fold)
        return np.float32(folded) * np.float32(radians), sign

    @numba_njit
    def float64_angle(magnitude: Any, i: Any) -> Any:
        phase = magnitude * f_hi[i] + ((magnitude * f_lo[i]) >> np.uint64(24))
        return np.float64(np.int64(phase)) * radians, 1.0

    angle_and_sign = float64_angle if is_float64 else float32_angle
    dtype = np.dtype(op.dtype).type

    @numba_njit
    def angles(position_ids: Any) -> Any:
        positions = np.ascontiguousarray(position_ids).reshape(-1)
        cos = np.empty((positions.size, n_pair), dtype=dtype)
        sin = np.empty((positions.size, n_pair), dtype=dtype)
        for t in range(positions.size):
            negative = positions[t] < 0
            magnitude = np.uint64(abs(np.int64(positions[t]))) if negative else np.uint64(positions[t])
            direction = dtype(-1) if negative else dtype(1)
            for i in range(n_pair):
                angle, sign = angle_and_sign(magnitude, i)
                cos[t, i] = np.cos(angle) * sign
                sin[t, i] = np.sin(angle) * sign * direction
        shape = (*position_ids.shape, n_pair)
        return cos.reshape(shape), sin.reshape(shape)

    return angles, cache_key(op, position_dtype)
