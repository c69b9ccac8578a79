"""Prompts, checked: token ids of one length or of several."""

from collections.abc import Sequence, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pytensor_rope.checks import as_array

# An array, or a sequence of arrays of different lengths.
type Prompts = npt.ArrayLike | Sequence[npt.ArrayLike]


def check_token_ids(token_ids: npt.ArrayLike, vocab_size: int) -> npt.NDArray[np.int32]:
    """Return the token ids as int32, refusing what no decoder of ``vocab_size`` can read."""
    ids = as_array("token_ids", token_ids)
    if ids.size == 0:
        raise ValueError("token_ids is empty: give at least one token to read.")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"token_ids must be integers; got {ids.dtype}.")
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        raise ValueError(
            f"token_ids must be from 0 to {vocab_size - 1}, the vocabulary; got {ids[outside].flat[0]}."
        )
    return ids.astype("int32")


def check_rows_of_ids(token_ids: npt.ArrayLike, batch: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """Return token ids ``(batch, n)``, given so or as ``(n,)`` for a batch of 1."""
    return _by_row(check_token_ids(token_ids, vocab_size), batch)


def check_prompts(
    token_ids: Prompts, mask: npt.ArrayLike | None, batch: int, vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """
    Return the prompts, each from the front of its row, ``(batch, n)``, and their lengths, ``(batch,)``.

    They are given as one array, with a ``mask`` of the same shape where there is padding in it; or as a
    sequence of prompts of different lengths.
    """
    if mask is not None:
        return _fill(_unmasked(as_array("token_ids", token_ids), mask, batch), vocab_size)
    if _is_ragged(token_ids):
        return _fill(_one_a_row(token_ids, batch), vocab_size)
    ids = check_rows_of_ids(cast(npt.ArrayLike, token_ids), batch, vocab_size)
    return ids, np.full(batch, ids.shape[1], "int32")


def _by_row(ids: npt.NDArray[Any], batch: int) -> npt.NDArray[Any]:
    if ids.ndim == 1 and batch == 1:
        ids = ids[None]
    if ids.ndim != 2 or ids.shape[0] != batch:
        raise ValueError(f"token_ids must have shape ({batch}, n) for this stream's batch; got {ids.shape}.")
    return ids


def _is_ragged(token_ids: Prompts) -> bool:
    """Return whether these are prompts of different lengths, which make no array."""
    if isinstance(token_ids, str | np.ndarray) or not isinstance(token_ids, Sequence):
        return False
    return len({_size(prompt) for prompt in token_ids}) > 1


def _size(prompt: Any) -> int:
    is_number = isinstance(prompt, str) or not isinstance(prompt, Sized) or getattr(prompt, "ndim", 1) == 0
    return -1 if is_number else len(prompt)


def _one_a_row(token_ids: Any, batch: int) -> list[npt.NDArray[Any]]:
    prompts = [as_array("token_ids", prompt) for prompt in token_ids]
    if len(prompts) != batch or any(prompt.ndim != 1 for prompt in prompts):
        raise ValueError(
            f"token_ids of different lengths must be one prompt for each of {batch} rows; got {len(prompts)} "
            f"of shapes {', '.join(str(prompt.shape) for prompt in prompts)}."
        )
    return prompts


def _unmasked(ids: npt.NDArray[Any], mask: npt.ArrayLike, batch: int) -> list[npt.NDArray[Any]]:
    shown = as_array("mask", mask)
    if shown.dtype != "bool" or shown.shape != ids.shape:
        raise ValueError(
            f"mask must be booleans in the shape of token_ids, {ids.shape}; got {shown.dtype} of shape "
            f"{shown.shape}."
        )
    rows = zip(_by_row(ids, batch), _by_row(shown, batch), strict=True)
    return [row[of_row] for row, of_row in rows]


def _fill(
    prompts: list[npt.NDArray[Any]], vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Put prompts of different lengths into one array, from the front of each row."""
    counts = np.array([prompt.size for prompt in prompts], "int32")
    # Those of an empty list would be floats.
    every = check_token_ids(
        np.concatenate([prompt for prompt in prompts if prompt.size] or prompts), vocab_size
    )
    ids = np.zeros((len(prompts), counts.max()), "int32")
    ids[np.arange(counts.max()) < counts[:, None]] = every
    return ids, counts
