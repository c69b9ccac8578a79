"""Products of matrices on MLX, shared between threads where it computes on a CPU."""

import os
from threading import local
from typing import Any

import mlx.core as mx
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.math import Dot

from pytensor_rope.lowering.mlx.generic import on_cpu
from pytensor_rope.lowering.transposed import transposed_matrix

# Products of fewer numbers are done before another thread has woken up.
_LEAST_SHARED = 2**18

_of_thread = local()


def is_shared(op: Any, node: Any) -> bool:
    """Return whether an op is a product with weights, whose rows lie one after another in memory."""
    if not isinstance(op, Dot):
        return False
    y = node.inputs[1]
    return y.owner is None or isinstance(transposed_matrix(y), SharedVariable)


def product(x: Any, y: Any) -> Any:
    """Return ``x @ y``, the half of what is summed from another thread where that pays."""
    if not _shares(x, y):
        return mx.matmul(x, y)
    half = y.shape[-2] // 2
    with mx.stream(_second_stream()):
        other = mx.matmul(x[..., half:], y[..., half:, :])
    return mx.matmul(x[..., :half], y[..., :half, :]) + other


def product_by_columns(x: Any, y: Any) -> Any:
    """Return ``x @ y``, the half of its columns from another thread where that pays."""
    if not _shares(x, y):
        return mx.matmul(x, y)
    half = y.shape[-1] // 2
    with mx.stream(_second_stream()):
        other = mx.matmul(x, y[..., half:])
    return mx.concatenate([mx.matmul(x, y[..., :half]), other], axis=-1)


def _shares(x: Any, y: Any) -> bool:
    """Return whether it pays to share a product, whose stacks of matrices are of the same shape."""
    n = y.size if y.ndim == 2 else y.size * x.shape[-2]
    # MLX multiplies float16 on a CPU by loops of its own, and halves would be rounded before they are added.
    fits = x.ndim == y.ndim and n >= _LEAST_SHARED and mx.float16 not in (x.dtype, y.dtype)
    return fits and on_cpu() and _n_core() > 1


def _n_core() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _second_stream() -> Any:
    """Return a stream besides the default one, which belongs to the thread that asks."""
    if not hasattr(_of_thread, "stream"):
        _of_thread.stream = mx.new_stream(mx.cpu)
    return _of_thread.stream
