"""A sink cache carried through a scan: many tokens in one call, each attending after the one before."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope

BATCH, N_HEAD, N_KV_HEAD, HEAD_DIM = 1, 4, 2, 16


def main(backend: str = "numba", steps: int = 20) -> np.ndarray:
    """Attend token by token, and return what the last one gets, ``(batch, n_head, 1, head_dim)``."""
    cache = rope.SinkCache(sinks=2, window=6)
    rotary = rope.RotaryEmbedding(head_dim=HEAD_DIM)

    # One token after the other along the first axis. JAX scans a number of steps that is known beforehand.
    q = pt.tensor("q", shape=(steps, BATCH, N_HEAD, 1, HEAD_DIM), dtype="float32")
    k = pt.tensor("k", shape=(steps, BATCH, N_KV_HEAD, 1, HEAD_DIM), dtype="float32")
    v = pt.tensor("v", shape=(steps, BATCH, N_KV_HEAD, 1, HEAD_DIM), dtype="float32")

    def step(q: Any, k: Any, v: Any, *state: Any) -> list[Any]:
        attended, new_state = cache.attend(q, k, v, rope.SinkCacheState(*state), rotary=rotary)
        return [attended, *new_state]

    initial = cache.initial_state(BATCH, N_KV_HEAD, HEAD_DIM)
    attended, *_ = pytensor.scan(
        step,
        sequences=[q, k, v],
        outputs_info=[None, *map(pt.as_tensor, initial)],
        return_updates=False,
    )
    attend_all = rope.function([q, k, v], attended[-1], backend=backend)

    rng = np.random.default_rng(0)
    tokens = [[rng.standard_normal(x.type.shape[1:]) for x in (q, k, v)] for _ in range(steps)]
    return attend_all(*(np.stack(values).astype("float32") for values in zip(*tokens, strict=True)))


if __name__ == "__main__":
    print(main()[0, :, 0, :4])
