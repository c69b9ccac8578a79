"""Transposes of matrices in a graph."""

from typing import Any

from pytensor.tensor.elemwise import DimShuffle


def transposed_matrix(y: Any) -> Any | None:
    """Return the matrix that ``y`` is the transpose of, None if it isn't one."""
    op = None if y.owner is None else y.owner.op
    return y.owner.inputs[0] if isinstance(op, DimShuffle) and op.new_order == (1, 0) else None
