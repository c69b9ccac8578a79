"""Writing into a cache in C, in place where that can be."""

from typing import Any, override

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import WalkingGraphRewriter, node_rewriter
from pytensor.link.c.params_type import ParamsType

from pytensor_rope.lowering.c.kernel import Kernel, register
from pytensor_rope.write_tokens import WriteTokens


class WriteTokensKernel(Kernel):
    """Let slots take tokens, in a copy of the rows or in place."""

    __props__ = ("in_place",)
    params_type = ParamsType(in_place=ps.bool)
    headers = ("write_tokens.h",)
    function = "write_tokens"

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        if in_place:
            self.destroy_map = {0: [0]}

    @override
    def template_types(self, node: Apply[Any]) -> list[str]:
        return []

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        rows, new, source = inputs
        if (*rows.shape[:2], rows.shape[3]) != (*new.shape[:2], new.shape[3]):
            raise ValueError("the chunk must have the cache's batch, heads and head_dim")
        if source.shape != (rows.shape[0], rows.shape[2]):
            raise ValueError("source must be (batch, slots)")
        if (source >= new.shape[2]).any():
            raise ValueError("source names a token that is not in the chunk")
        out = rows if self.in_place else rows.copy()
        for of_row, tokens, slots in zip(out, new, source, strict=True):
            taken = np.flatnonzero(slots >= 0)
            of_row[:, taken] = tokens[:, slots[taken]]
        output_storage[0][0] = out


def _lower(op: WriteTokens, node: Apply[Any]) -> list[Any] | None:
    """Return what C and Numba write tokens with."""
    rows, new, source = node.inputs
    if rows.type.dtype != new.type.dtype or source.type.dtype != "int32":
        return None
    return WriteTokensKernel(in_place=False).make_node(rows, new, source).outputs


@node_rewriter([WriteTokensKernel], inplace=True)
def _write_in_place(fgraph: Any, node: Apply[Any]) -> Any:
    if node.op.in_place:
        return None
    return WriteTokensKernel(in_place=True).make_node(*node.inputs).outputs


register(WriteTokens, _lower)
# Numba's own registrations come too late for the first graph that is compiled for it.
register(WriteTokens, _lower, tags=("numba",))
# With PyTensor's own indexed writes, after which no other rewrite takes a cache for itself.
optdb.register(
    "write_tokens_in_place",
    WalkingGraphRewriter(_write_in_place, failure_callback=WalkingGraphRewriter.warn_inplace),
    "fast_run",
    "inplace",
    position=70.6,
)
