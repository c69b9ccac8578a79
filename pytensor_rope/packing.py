"""Chunks with padding: the tokens moved together, and what comes of them moved back."""

from typing import cast

import pytensor.tensor as pt
from pytensor.tensor import TensorLike
from pytensor.tensor.shape import specify_shape

from pytensor_rope.base import Tensor, axis_indices, named_tensor, pinned, sizes


class Packing:
    """
    Where the real tokens of a chunk are, for moving them to the front of their rows and back.

    The places are found by comparing all pairs of them, ``(batch, seq, seq)``: meant for chunks.

    Parameters
    ----------
    mask : tensor
        True for a token, False for padding, ``(batch, seq)``, bool.
    like : tensor
        A tensor of the chunk, ``(batch, heads, seq, head_dim)``, for its batch and sequence.

    Attributes
    ----------
    count : tensor
        Number of real tokens of each row, ``(batch,)``, int32.

    Raises
    ------
    TypeError, ValueError
        If ``mask`` is no matrix of booleans or its static shape isn't the chunk's. What only the call tells
        is refused at the call.
    """

    def __init__(self, mask: TensorLike, like: Tensor) -> None:
        self._mask = _check_mask(mask, like)
        self._is_single = like.type.shape[2] == 1
        # The n-th token of a row is the one up to which n + 1 tokens are counted.
        counted: Tensor = pt.cumsum(self._mask.astype("int32"), axis=1)
        self.count: Tensor = counted[:, -1]
        zero, one = pinned(0, "int32"), pinned(1, "int32")
        n = axis_indices(like, 2)
        before = pt.le(counted[:, None, :], n[None, :, None]).astype("int32")
        last = self._mask.shape[1].astype("int32") - one
        self._source = pt.minimum(before.sum(axis=-1, dtype="int32", acc_dtype="int32"), last)
        self._target = pt.maximum(counted - one, zero)

    def pack(self, x: Tensor) -> Tensor:
        """Return ``x`` with the tokens of each row moved to its front; what follows them is undefined."""
        return x if self._is_single else take_tokens(x, self._source)

    def unpack(self, x: Tensor) -> Tensor:
        """Return ``x``, computed for packed tokens, with each back in its place and 0 for padding."""
        back = x if self._is_single else take_tokens(x, self._target)
        return cast(Tensor, pt.where(self._mask[:, None, :, None], back, pinned(0, x.dtype)))


def take_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Return the tokens ``index (batch, n)`` of ``x (batch, heads, seq, head_dim)``, in this order."""
    if x.type.shape[0] == 1:
        return cast(Tensor, x[:, :, index[0]])
    batch, head = axis_indices(x, 0), axis_indices(x, 1)
    return cast(Tensor, x[batch[:, None, None], head[None, :, None], index[:, None, :]])


def _check_mask(mask: TensorLike, like: Tensor) -> Tensor:
    checked = named_tensor(mask, "mask")
    if checked.dtype != "bool" or checked.ndim != 2:
        raise TypeError(
            f"mask must be (batch, seq) of bool, True for a token; got {checked.type}. From positions that "
            f"are negative for padding it is made by position_ids >= 0."
        )
    of_chunk = (like.type.shape[0], like.type.shape[2])
    for given, size in zip(checked.type.shape, of_chunk, strict=True):
        if None not in (given, size) and given != size:
            raise ValueError(
                f"mask must have the chunk's batch and seq, {of_chunk}; got {checked.type.shape}."
            )
    batch, _, seq, _ = sizes(like)
    return cast(Tensor, specify_shape(checked, (batch, seq)))
