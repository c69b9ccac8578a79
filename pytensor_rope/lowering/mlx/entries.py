"""One entry of an axis, read and written where its index is known only when it runs."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.graph.basic import Constant
from pytensor.tensor.subtensor import IncSubtensor, Subtensor


def convert_entry(op: Any, node: Any) -> Callable[..., Any] | None:
    """
    Return ``x[:, i]`` or ``x[:, i].set(y)``, on any axis, as one slice; None for what is none of these.

    MLX's own indexing gathers and scatters, with an index for every entry of the other axes, and checks
    none. Here one that is out of range means the nearest entry.
    """
    if not isinstance(op, Subtensor | IncSubtensor):
        return None
    index = node.inputs[-1]
    axes = [axis for axis, entry in enumerate(op.idx_list) if not isinstance(entry, slice)]
    others = [entry for entry in op.idx_list if isinstance(entry, slice)]
    if len(axes) != 1 or any(entry != slice(None) for entry in others) or isinstance(index, Constant):
        return None
    (axis,) = axes

    def start(x: Any, i: Any) -> Any:
        i = mx.array(i).astype(mx.int32).reshape(1)
        n = x.shape[axis]
        return mx.clip(mx.where(i < 0, i + n, i), 0, n - 1)

    def read(x: Any, i: Any) -> Any:
        size = [1 if at == axis else n for at, n in enumerate(x.shape)]
        return mx.squeeze(mx.slice(x, start(x, i), (axis,), size), axis)

    def write(x: Any, y: Any, i: Any) -> Any:
        shape = [n for at, n in enumerate(x.shape) if at != axis]
        entry = mx.expand_dims(mx.broadcast_to(y, shape), axis)
        return mx.slice_update(x, entry.astype(x.dtype), start(x, i), (axis,))

    if isinstance(op, Subtensor):
        return read
    return write if op.set_instead_of_inc else None
