"""A sink cache in shared variables, which each call updates in place or, on JAX, in donated memory."""

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope

BATCH, N_HEAD, N_KV_HEAD, HEAD_DIM = 1, 4, 2, 16


def main(backend: str = "numba", steps: int = 20) -> np.ndarray:
    """Attend token by token, and return what the last one gets, ``(batch, n_head, 1, head_dim)``."""
    cache = rope.SinkCache(sinks=2, window=6)
    rotary = rope.RotaryEmbedding(head_dim=HEAD_DIM)

    q = pt.tensor("q", shape=(BATCH, N_HEAD, 1, HEAD_DIM), dtype="float32")
    k = pt.tensor("k", shape=(BATCH, N_KV_HEAD, 1, HEAD_DIM), dtype="float32")
    v = pt.tensor("v", shape=(BATCH, N_KV_HEAD, 1, HEAD_DIM), dtype="float32")

    values = cache.initial_state(BATCH, N_KV_HEAD, HEAD_DIM)
    # The shape makes it part of the type: with one row known, a token is written in place.
    state = rope.SinkCacheState(*(pytensor.shared(value, shape=value.shape) for value in values))
    attended, new_state = cache.attend(q, k, v, state, rotary=rotary)
    step = rope.function([q, k, v], attended, backend=backend, updates=zip(state, new_state, strict=True))

    rng = np.random.default_rng(0)
    for _ in range(steps):
        output = step(*(rng.standard_normal(x.type.shape).astype("float32") for x in (q, k, v)))
    return output


if __name__ == "__main__":
    print(main()[0, :, 0, :4])
