"""A sink cache inside a graph of one's own: the state is an input, and the next state an output."""

import numpy as np
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
    state = rope.SinkCacheState(*(pt.as_tensor(value).type() for value in values))
    attended, new_state = cache.attend(q, k, v, state, rotary=rotary)
    step = rope.function([q, k, v, *state], [attended, *new_state], backend=backend)

    rng = np.random.default_rng(0)
    for _ in range(steps):
        token = (rng.standard_normal(x.type.shape).astype("float32") for x in (q, k, v))
        output, *values = step(*token, *values)
    return output


if __name__ == "__main__":
    print(main()[0, :, 0, :4])
