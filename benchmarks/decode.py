"""Time a real model, one token at a time."""

from statistics import median
from time import perf_counter

import pytensor_rope as rope
from benchmarks.measure import print_times


def run(backends: list[str], n_tokens: int) -> None:
    for backend in backends:
        print_times(backend, "SmolLM2-135M, one token", *time_decoding(backend, n_tokens))


def time_decoding(backend: str, n_tokens: int) -> tuple[float, float]:
    """Return the seconds to load, compile and give the first token, and of a later token."""
    start = perf_counter()
    model = rope.load_model("smollm2")
    stream = model.compile(backend, sinks=4, window=252)
    tokens = iter(stream.generate(model.tokenizer.encode("Gravity is"), max_tokens=None))
    next(tokens)
    first = perf_counter() - start
    next(tokens)  # a backend may compile the one-token step here

    times = []
    for _ in range(n_tokens):
        start = perf_counter()
        next(tokens)
        times.append(perf_counter() - start)
    return first, median(times)
