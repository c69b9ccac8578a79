"""Products of matrices on MLX, shared between threads where it computes on a CPU."""

import os
from collections.abc import Callable
from threading import local
from typing import Any, cast

import mlx.core as mx
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.mlx.dispatch.basic import mlx_funcify
from pytensor.tensor.math import Dot

from pytensor_rope.lowering.mlx.generic import on_cpu
from pytensor_rope.lowering.transposed import transposed_matrix

# Products with fewer weights are done before another thread has woken up.
_LEAST_SHARED = 2**18

_of_thread = local()


def convert(op: Any, node: Any = None, **kwargs: Any) -> Callable[..., Any]:
    """Convert an op for MLX as PyTensor does, but share products with weights."""
    if isinstance(op, Dot) and node is not None and _has_contiguous_rows(node.inputs[1]):
        return _shared_product
    return cast(Callable[..., Any], mlx_funcify(op, node=node, **kwargs))


def _has_contiguous_rows(y: Any) -> bool:
    """Return whether the rows of ``y`` lie one after another in memory, as those of weights do."""
    return y.owner is None or isinstance(transposed_matrix(y), SharedVariable)


def _shared_product(x: Any, y: Any) -> Any:
    """Return ``x @ y``, half of it from another thread where that pays."""
    # The halves of a product in float16 would be rounded before they are added.
    shares = x.ndim == y.ndim == 2 and y.size >= _LEAST_SHARED and mx.float16 not in (x.dtype, y.dtype)
    if not shares or not on_cpu() or _n_core() < 2:
        return mx.matmul(x, y)
    half = y.shape[0] // 2
    with mx.stream(_second_stream()):
        other = mx.matmul(x[:, half:], y[half:])
    return mx.matmul(x[:, :half], y[:half]) + other


def _n_core() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _second_stream() -> Any:
    """Return a stream besides the default one, which belongs to the thread that asks."""
    if not hasattr(_of_thread, "stream"):
        _of_thread.stream = mx.new_stream(mx.cpu)
    return _of_thread.stream
