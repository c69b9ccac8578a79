"""Writing into a cache in Numba, in place where that can be."""

from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pytensor_rope.lowering.c.write_tokens import WriteTokensKernel
from pytensor_rope.lowering.numba.kernel import Lowered, cache_key


@register_funcify_and_cache_key(WriteTokensKernel)
def _write_tokens(op: WriteTokensKernel, **kwargs: Any) -> Lowered:
    in_place = op.in_place

    @numba_njit
    def write_tokens(rows: Any, new: Any, source: Any) -> Any:
        batch, n_head, slots, head_dim = rows.shape
        seq = new.shape[2]
        if new.shape != (batch, n_head, seq, head_dim) or source.shape != (batch, slots):
            raise ValueError("the chunk, the cache and where its tokens go don't fit together")
        for b in range(batch):
            for slot in range(slots):
                if source[b, slot] >= seq:
                    raise ValueError("source names a token that is not in the chunk")
        out = rows if in_place else rows.copy()
        for b in range(batch):
            for slot in range(slots):
                token = source[b, slot]
                if token < 0:
                    continue
                for head in range(n_head):
                    for dim in range(head_dim):
                        out[b, head, slot, dim] = new[b, head, token, dim]
        return out

    return write_tokens, cache_key(op)
