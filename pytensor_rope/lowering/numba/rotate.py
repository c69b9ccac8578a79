"""The rotation in Numba."""

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pytensor_rope.base import computation_dtype
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key, leading
from pytensor_rope.rotate import Rotate


@register_funcify_and_cache_key(Rotate)
def _rotate(op: Rotate, **kwargs: Any) -> Lowered:
    x_type, cos_type, _ = op.input_types
    step, apart = (1, None) if op.pairing == "half" else (2, 1)
    rotary_dim = op.rotary_dim
    n_lead, n_cos_lead = x_type.ndim - 2, cos_type.ndim - 2
    dtype = np.dtype(computation_dtype(x_type.dtype)).type
    out_dtype = np.dtype(x_type.dtype).type

    @numba_njit
    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        seq, d = x.shape[-2], x.shape[-1]
        n_pair = (d if rotary_dim is None else rotary_dim) // 2
        odd = rotary_dim is None and d % 2 == 1
        if odd or cos.shape[-1] != n_pair or 2 * n_pair > d or cos.shape[-2] != seq:
            raise ValueError("x and the angles it is rotated by don't fit together")
        offset = n_pair if apart is None else apart
        rows = np.ascontiguousarray(x).reshape((leading(x, 2), seq, d))
        cosines = np.ascontiguousarray(cos).reshape((leading(cos, 2), seq, n_pair))
        sines = np.ascontiguousarray(sin).reshape(cosines.shape)
        out = np.empty(rows.shape, dtype=out_dtype)
        for row in range(rows.shape[0]):
            # Which of the angles' rows this one takes: they broadcast over the leading axes.
            at, stride, rest = 0, 1, row
            for back in range(n_lead):
                size = x.shape[n_lead - 1 - back]
                angle_size = cos.shape[n_cos_lead - 1 - back] if back < n_cos_lead else 1
                if angle_size not in (1, size):
                    raise ValueError("x and the angles it is rotated by don't fit together")
                if angle_size != 1:
                    at += rest % size * stride
                stride *= angle_size
                rest //= size
            for t in range(seq):
                for i in range(n_pair):
                    first, second = dtype(rows[row, t, step * i]), dtype(rows[row, t, step * i + offset])
                    c, s = dtype(cosines[at, t, i]), dtype(sines[at, t, i])
                    out[row, t, step * i] = out_dtype(first * c - second * s)
                    out[row, t, step * i + offset] = out_dtype(second * c + first * s)
                for i in range(2 * n_pair, d):
                    out[row, t, i] = rows[row, t, i]
        return out.reshape(x.shape)

    return rotate, cache_key(op, n_lead, n_cos_lead, x_type.dtype)
