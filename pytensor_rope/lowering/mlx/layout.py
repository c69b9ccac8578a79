"""How matrices lie in memory on MLX."""

from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.link.mlx.dispatch.basic import mlx_typify
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pytensor_rope.lowering.mlx.generic import on_cpu
from pytensor_rope.lowering.transposed import transposed_matrix


def multiplied_transposed(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield the shared matrices whose transposes are multiplied with, where that is slower than a matrix."""
    if not on_cpu():
        return
    for variable in ancestors(outputs):
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op.core_op if isinstance(op, Blockwise) else op, Dot):
            matrix = transposed_matrix(variable.owner.inputs[1])
            if isinstance(matrix, SharedVariable):
                yield matrix


def column_major(matrix: Any) -> Any:
    """Return ``matrix`` with its columns, not its rows, contiguous in memory: its transpose is then fast."""
    array = as_mlx(matrix)
    if memoryview(array).strides == (array.itemsize, array.shape[0] * array.itemsize):
        return array
    laid_out = mx.contiguous(array.T).T
    mx.eval(laid_out)
    return laid_out


def as_mlx(value: Any) -> Any:
    """Return ``value`` as an MLX array of the same dtype."""
    return value if isinstance(value, mx.array) else mlx_typify(np.asarray(value))
