"""
Let a small decoder read hundreds of thousands of tokens, and see that nothing grows, slows down or drifts.

The reference is exact. A decoder with one layer keeps keys and values that depend on a token and its position
alone, and with ``positions="cache"`` it sees them at the positions they have in the cache. So what it says
after any number of tokens is what it says after just those it still sees: the sinks and the last window. A
fork of the stream reads these from an empty cache, at positions below the cache's size. (In a decoder of more
layers, what is kept of a token has seen others before it, and so depends on the whole past.)
"""

import gc
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import psutil

import pytensor_rope as rope

SINKS, WINDOW = 4, 60
WARM_UP = 1_000
TIMED = 1_000
SAMPLES = 20
TOLERANCE = 1e-4

CONFIG = rope.DecoderConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    n_layer=1,
    n_head=4,
    n_kv_head=2,
    head_dim=16,
    context_length=64,
)


@dataclass
class Soak:
    """What a run has shown: seconds a step at both ends, bytes, and the largest error."""

    first: float
    last: float
    growth: int
    error: float
    spread: float
    finite: bool
    sinks_kept: bool

    @property
    def passed(self) -> bool:
        return self.finite and self.sinks_kept and self.error < TOLERANCE * self.spread

    def __str__(self) -> str:
        cells = (
            f"{self.first * 1e6:7.1f} µs",
            f"{self.last * 1e6:7.1f} µs",
            f"{self.last / self.first:10.2f}",
            f"{self.growth / 2**20:6.1f} MiB",
            f"{self.error:10.1e} of logits ±{self.spread:4.1f}",
            "" if self.passed else "WRONG",
        )
        return " ".join(cells)


def run(backends: list[str], steps: int) -> bool:
    """Print a table, a line a backend; return whether all outputs were right."""
    if steps < WARM_UP + 2 * TIMED:
        raise SystemExit(f"soak takes at least {WARM_UP + 2 * TIMED:,} steps.")
    heads = ("first", "last", "last/first", "growth", "largest error")
    print(f"{steps:,} steps, {SINKS} sinks and a window of {WINDOW}; logits compared at {SAMPLES} of them")
    print(f"{'backend':8} {heads[0]:>10} {heads[1]:>10} {heads[2]:>10} {heads[3]:>10} {heads[4]:>24}")
    passed = True
    for backend in backends:
        soak = measure(backend, steps)
        passed &= soak.passed
        print(f"{backend:8} {soak}", flush=True)
    return passed


def measure(backend: str, steps: int) -> Soak:
    ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, steps)
    stream = rope.Stream(decoder(), rope.SinkCache(SINKS, WINDOW), backend=backend)
    checker = stream.fork()
    times = np.full(steps, np.nan)  # written to, so that its memory is there from the start
    sampled = set(np.linspace(WARM_UP, steps - 1, SAMPLES).astype(int).tolist())
    error, spread, finite, start_memory = 0.0, 0.0, True, 0
    for i, token in enumerate(ids):
        start = perf_counter()
        logits = stream.step(token)
        times[i] = perf_counter() - start
        finite = finite and bool(np.isfinite(logits).all())
        if i in sampled:
            error = max(error, float(np.abs(logits - expected(checker, ids, i)).max()))
            spread = max(spread, float(np.abs(logits).max()))
        if i + 1 == WARM_UP + TIMED:  # the checker has been compiled by now
            start_memory, sinks = resident_memory(), sink_keys(stream)
    return Soak(
        first=median(times[WARM_UP + 1 : WARM_UP + 1 + TIMED]),
        last=median(times[-TIMED - 1 : -1]),
        growth=resident_memory() - start_memory,
        error=error,
        spread=spread,
        finite=finite,
        sinks_kept=bool((sink_keys(stream) == sinks).all()),
    )


def decoder() -> rope.Decoder:
    """Return a random decoder whose attention is far from uniform."""
    model = rope.Decoder(config=CONFIG, seed=0)
    for name, parameter in model.parameters.items():
        if not name.endswith("norm"):
            parameter.set_value(parameter.get_value() * 10)
    return model


def expected(checker: rope.Stream, ids: np.ndarray, i: int) -> np.ndarray:
    """Return the logits after token ``i``, from the tokens that are still seen alone."""
    checker.reset()
    return checker.prefill(np.concatenate([ids[:SINKS], ids[i - WINDOW + 1 : i + 1]]))


def sink_keys(stream: rope.Stream) -> np.ndarray:
    return np.array(stream._own_state.arrays()["keys.0"][:, :, :SINKS])


def resident_memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
