"""Weights read from a file a block of rows at a time, so that little but the model itself takes memory."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, Weight

# Small enough to stay in the processor's cache, large enough to make NumPy's overhead small.
_VALUES_AT_ONCE = 1 << 18

ReadRows = Callable[[int, int], npt.NDArray[Any]]


def read_weight(weight: Weight, read_rows: ReadRows, dtype: str = "float32") -> npt.NDArray[Any]:
    """
    Read one weight.

    Parameters
    ----------
    weight : Weight
        What to read.
    read_rows : callable
        Takes the first row and the one behind the last, and returns these rows of the file's tensor, floats
        in any shape. A tensor of one axis is one row, unless ``weight.rows`` chooses from it: then each value
        is one.
    dtype : str, optional
        dtype to keep it in. Default is "float32".

    Returns
    -------
    ndarray
        In our layout.

    Raises
    ------
    CheckpointError
        If a value isn't finite, or isn't in ``dtype``.
    """
    array, ours = weight.empty(dtype)
    is_one_row = weight.rows is None and len(weight.shape) == 1
    n_row = 1 if is_one_row else weight.shape[0]
    flat = ours.reshape(1, -1) if is_one_row else ours if ours.ndim > 1 else ours.reshape(-1, 1)
    rows = np.arange(n_row) if weight.rows is None else weight.rows
    order = np.argsort(rows, kind="stable")
    in_order = rows[order]
    step = max(_VALUES_AT_ONCE // max(math.prod(weight.shape) // n_row, 1), 1)
    first, last = (int(in_order[0]), int(in_order[-1]) + 1) if len(rows) else (0, 0)
    for start in range(first, last, step):
        stop = min(start + step, last)
        begin, end = np.searchsorted(in_order, [start, stop])
        if begin == end:
            continue
        values = read_rows(start, stop)
        with np.errstate(over="ignore"):
            block = values.reshape(stop - start, *flat.shape[1:])[in_order[begin:end] - start].astype(dtype)
        if not np.isfinite(block).all():
            finite = bool(np.isfinite(values).all())
            why = f"are too large for {dtype}" if finite else "aren't finite"
            raise CheckpointError(f"the tensor {weight.source} holds values that {why}.")
        flat[order[begin:end]] = block
    return array
