"""The rows of a stream: which ones are meant, and how many tokens each has read."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytensor_rope.cache import SinkCache
from pytensor_rope.checks import MOST_TOKENS, as_array, token_counts


class RowCounter:
    """
    The number of tokens that each row has read, and the most it had since it was empty.

    The second one tells how far a row can be rewound: a slot once overwritten stays so, however the first
    one goes back and forth.

    Attributes
    ----------
    lengths, longest
        Shape ``(batch,)``, int64.
    """

    def __init__(self, batch: int) -> None:
        self.lengths = np.zeros(batch, "int64")
        self.longest = np.zeros(batch, "int64")

    def advance(self, counts: npt.NDArray[np.integer]) -> None:
        """Count tokens read, ``(batch,)``."""
        self.lengths += counts
        self.longest = np.maximum(self.longest, self.lengths)

    def count_from(self, lengths: npt.NDArray[np.integer], longest: npt.NDArray[np.integer]) -> None:
        """Go on counting from other numbers, each ``(batch,)``."""
        self.lengths, self.longest = lengths.astype("int64"), longest.astype("int64")

    def check_room(self, counts: npt.NDArray[np.integer]) -> None:
        """Refuse to read more tokens, ``(batch,)``, than the counter holds."""
        full = np.flatnonzero(self.lengths + counts > MOST_TOKENS)
        if full.size:
            raise ValueError(
                f"A stream ends at {MOST_TOKENS} tokens, and {self.lengths[full[0]]} have been read in row "
                f"{full[0]}. reset() it."
            )

    def reset(self, rows: npt.NDArray[np.intp]) -> None:
        """Count from 0 again."""
        self.lengths[rows] = 0
        self.longest[rows] = 0

    def rewind(self, rows: npt.NDArray[np.intp], n: object, caches: Sequence[SinkCache]) -> None:
        """Count ``n`` tokens less, one number or one for each of ``rows``, if all ``caches`` can go there."""
        counts = token_counts("n", n)
        if counts.ndim and counts.shape != rows.shape:
            raise ValueError(f"n must be one number, or one for each of {rows.size} rows; got {n!r}.")
        earliest = np.max([cache.earliest_length(self.longest[rows]) for cache in set(caches)], axis=0)
        most = self.lengths[rows] - earliest
        beyond = np.flatnonzero(counts > most)
        if beyond.size:
            row, can = rows[beyond[0]], most[beyond[0]]
            hint = "What was before that has been overwritten: a cache with more headroom keeps more."
            raise ValueError(
                f"n must be at most {can} for row {row}, at {self.lengths[row]} tokens; got {n!r}."
                + (f" {hint}" if can < self.lengths[row] else "")
            )
        self.lengths[rows] -= counts

    def drop(self, rows: npt.NDArray[np.intp]) -> None:
        """Forget rows; those behind move up."""
        self.lengths = np.delete(self.lengths, rows)
        self.longest = np.delete(self.longest, rows)

    def add(self, n: int) -> None:
        """Add empty rows at the end."""
        self.lengths = np.append(self.lengths, np.zeros(n, "int64"))
        self.longest = np.append(self.longest, np.zeros(n, "int64"))


def check_rows(rows: object, batch: int) -> npt.NDArray[np.intp]:
    """Return the numbers of rows, all when None, refusing those that aren't there or come twice."""
    if rows is None:
        return np.arange(batch)
    numbers = np.atleast_1d(as_array("rows", rows))
    if numbers.ndim > 1 or not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0):
        raise TypeError(
            f"rows must be a row's number or a sequence of them; got {rows!r}. For a mask, "
            f"numpy.flatnonzero(mask) gives them."
        )
    if numbers.size and (numbers.min() < 0 or numbers.max() >= batch):
        raise ValueError(f"rows must be from 0 to {batch - 1}; got {rows!r}.")
    if np.unique(numbers).size < numbers.size:
        raise ValueError(f"rows must name each row once; got {rows!r}.")
    return numbers.astype("intp")


def check_active(active: npt.ArrayLike | None, batch: int) -> npt.NDArray[np.bool_]:
    """Return which rows are to read, all when None, refusing to leave out every one."""
    if active is None:
        return np.ones(batch, "bool")
    mask = as_array("active", active)
    if mask.dtype != "bool" or mask.shape != (batch,):
        raise ValueError(
            f"active must be one boolean a row, shape ({batch},); got {mask.dtype} of shape {mask.shape}."
        )
    if not mask.any():
        raise ValueError("active leaves out every row: there is nothing to read.")
    return mask
