"""Putting a chunk's tokens into the slots of a cache."""

from collections.abc import Sequence
from typing import Any, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from pytensor_rope.base import LayerOp, Tensor, pinned
from pytensor_rope.packing import take_tokens


class WriteTokens(LayerOp):
    """
    Rows of a cache in which some slots take tokens of a chunk.

    Inputs are the rows ``(batch, heads, slots, head_dim)``, the chunk ``(batch, heads, seq, head_dim)`` of
    the same dtype, and for each slot the token that it takes, negative for none, ``(batch, slots)`` of int32.
    The output is like the rows. C and Numba write in place where nothing else needs the rows as they were.
    """

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        rows, new, source = inputs
        zero = pinned(0, "int32")
        taken = pt.ge(source, zero)[:, None, :, None]
        return [pt.where(taken, take_tokens(new, pt.maximum(source, zero)), rows)]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]
