"""Weights read from a file a block of rows at a time, so that little but the model itself takes memory."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, Weight

# Small enough to stay in the processor's cache, large enough to make NumPy's overhead small.
_VALUES_AT_ONCE = 1 << 18

ReadRows = Callable[[int, int], npt.NDArray[Any]]
Rows = slice | npt.NDArray[np.intp]


def expected_in(
    shapes: Mapping[str, tuple[int, ...]], weights: Iterable[Weight], needed_by: str
) -> Iterator[Weight]:
    """
    Yield the weights that a file must hold, refusing the first that it lacks or has in another shape.

    A damaged file may promise billions of layers, so nothing is asked of ``weights`` beyond that.
    """
    for weight in weights:
        if weight.source not in shapes:
            raise CheckpointError(f"the tensor {weight.source} is missing.")
        if shapes[weight.source] != weight.shape:
            raise CheckpointError(
                f"the tensor {weight.source} has shape {shapes[weight.source]}; {needed_by} {weight.shape}."
            )
        yield weight


def refuse_surplus(names: Iterable[str]) -> None:
    """Refuse tensors that nobody knows, if there are any."""
    unknown = sorted(names)
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise CheckpointError(f"the tensors {', '.join(unknown[:3])}{more} aren't implemented.")


def read_weights(
    weights: list[Weight], read: Callable[[Weight], npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Return the weights by our names, read two at a time."""
    with ThreadPoolExecutor(2) as pool:
        arrays = pool.map(read, weights)
        return {weight.name: array for weight, array in zip(weights, arrays, strict=True)}


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
    n_row = weight.n_row if weight.rows is None else len(weight.rows)
    flat = ours if ours.ndim > 1 else ours.reshape(n_row, -1)
    step = max(_VALUES_AT_ONCE // max(math.prod(weight.shape) // weight.n_row, 1), 1)
    for start, stop, chosen, places in _blocks(weight, step):
        values = read_rows(start, stop)
        with np.errstate(over="ignore"):
            block = values.reshape(stop - start, *flat.shape[1:])[chosen].astype(dtype, copy=False)
        if not np.isfinite(block).all():
            finite = bool(np.isfinite(values).all())
            why = f"are too large for {dtype}" if finite else "aren't finite"
            raise CheckpointError(f"the tensor {weight.source} holds values that {why}.")
        flat[places] = block
    return array


def _blocks(weight: Weight, step: int) -> Iterator[tuple[int, int, Rows, Rows]]:
    """Yield the file's rows to read at once, first and last, which of them to take, and where they go."""
    if weight.rows is None:
        for start in range(0, weight.n_row, step):
            stop = min(start + step, weight.n_row)
            yield start, stop, slice(None), slice(start, stop)
        return
    order = np.argsort(weight.rows, kind="stable")
    in_order = weight.rows[order]
    first, last = (int(in_order[0]), int(in_order[-1]) + 1) if len(order) else (0, 0)
    for start in range(first, last, step):
        stop = min(start + step, last)
        begin, end = np.searchsorted(in_order, [start, stop])
        if begin < end:
            yield start, stop, in_order[begin:end] - start, order[begin:end]
