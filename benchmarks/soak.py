"""
Let a small decoder read hundreds of thousands of tokens, and see that nothing grows, slows down or drifts.

The reference is exact. A decoder with one layer keeps keys and values that depend on a token and its position
alone, and with ``positions="cache"`` it sees them at the positions they have in the cache. So what it says
after any number of tokens is what it says after just those it still sees: the sinks and the last window. A
fork of the stream reads these from an empty cache, at positions below the cache's size. (In a decoder of more
layers, what is kept of a token has seen others before it, and so depends on the whole past.)

Then two forks step in turns, one from position 2,000 on and one from 1,000,000 on. Their counters
are set to it, which no public method does: their caches keep what they hold, so that a step does all that it
does out there.
"""

import gc
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import psutil

import pytensor_rope as rope
from benchmarks.measure import Spread, take_turns
from benchmarks.report import OURS, Ratio, Report, Row

SINKS, WINDOW = 4, 60
WARM_UP = 1_000
TIMED = 1_000
SAMPLES = 20
TOLERANCE = 1e-4
NEAR, FAR = 2_000, 1_000_000
FAR_GOAL = 1.03
TURNS, STEPS_A_TURN = 30, 200

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
    """What a run has shown: seconds a step at both ends and far out, bytes, and the largest error."""

    first: Spread
    last: Spread
    near: Spread
    far: Spread
    growth: int
    error: float
    spread: float
    finite: bool
    sinks_kept: bool

    @property
    def passed(self) -> bool:
        return self.finite and self.sinks_kept and self.error < TOLERANCE * self.spread

    def rows(self, backend: str) -> list[Row]:
        right = OURS if self.passed else f"{OURS}: WRONG"
        later = Ratio("the first", self.last.median / self.first.median)
        further = Ratio(f"from {NEAR:,} on", self.far.median / self.near.median, FAR_GOAL)
        return [
            Row(f"a step, the first {TIMED:,}", backend, OURS, "s", self.first),
            Row(f"a step, the last {TIMED:,}", backend, OURS, "s", self.last, (later,)),
            Row(f"a step, from {NEAR:,} on", backend, OURS, "s", self.near),
            Row(f"a step, from {FAR:,} on", backend, OURS, "s", self.far, (further,)),
            Row("memory gained", backend, OURS, "B", Spread.of([self.growth])),
            Row(f"error of logits ±{self.spread:.1f}", backend, right, "", Spread.of([self.error])),
        ]


def run(backends: list[str], report: Report, *, steps: int) -> bool:
    """Report on each backend; return whether all outputs were right."""
    if steps < WARM_UP + 2 * TIMED:
        raise SystemExit(f"soak takes at least {WARM_UP + 2 * TIMED:,} steps.")
    report.settings = {"steps": steps, "sinks": SINKS, "window": WINDOW, "logits compared": SAMPLES}
    report.start()
    passed = True
    for backend in backends:
        soak = measure(backend, steps)
        passed &= soak.passed
        report.add(soak.rows(backend))
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
    growth = resident_memory() - start_memory
    near, far = steps_from(stream, NEAR, FAR)
    return Soak(
        first=Spread.of(times[WARM_UP + 1 : WARM_UP + 1 + TIMED]),
        last=Spread.of(times[-TIMED - 1 : -1]),
        near=near,
        far=far,
        growth=growth,
        error=error,
        spread=spread,
        finite=finite,
        sinks_kept=bool((sink_keys(stream) == sinks).all()),
    )


def steps_from(stream: rope.Stream, *positions: int) -> list[Spread]:
    """Return the seconds of a step of forks that go on from the given positions, and take turns."""
    forks = {position: fork_at(stream, position) for position in positions}
    subjects = {
        position: lambda i, fork=fork: fork.step(i % CONFIG.vocab_size) for position, fork in forks.items()
    }
    return list(take_turns(subjects, rounds=TURNS, calls=STEPS_A_TURN, settle=20).values())


def fork_at(stream: rope.Stream, position: int) -> rope.Stream:
    """Return a fork that takes what its cache holds for the end of ``position`` tokens."""
    fork = stream.fork()
    fork.reset()
    fork._rows.advance(np.array([position]))
    fork._put_lengths()
    return fork


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
