"""Time exact angles against the customary float32 product of position and frequency."""

from collections.abc import Callable
from statistics import median

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope
from benchmarks.measure import time_call

HEAD_DIM = 128
LENGTHS = (1, 4096)
ROUNDS = {1: 2_000, 4096: 100}


def run(backends: list[str]) -> None:
    print(f"cosines and sines of {HEAD_DIM} dimensions in float32, medians; the two take turns")
    print(f"{'backend':8} {'positions':>9} {'exact':>12} {'product':>12} {'ratio':>6}")
    for backend in backends:
        exact, product = (compile_angles(backend, exact=kind) for kind in (True, False))
        for length in LENGTHS:
            times = time_by_turns(exact, product, length)
            shown = "".join(f"{seconds * 1e6:10.1f} µs" for seconds in times)
            print(f"{backend:8} {length:9,} {shown} {times[0] / times[1]:6.2f}", flush=True)


def compile_angles(backend: str, *, exact: bool) -> Callable[..., list[np.ndarray]]:
    position_ids = pt.ivector("position_ids")
    layer = rope.RotaryEmbedding(head_dim=HEAD_DIM, exact=exact)
    return rope.function([position_ids], list(layer.angles(position_ids, dtype="float32")), backend=backend)


def time_by_turns(first: Callable[..., object], second: Callable[..., object], length: int) -> list[float]:
    """Return the median seconds of each function, called alternately on fresh positions."""
    rng = np.random.default_rng(0)
    times: list[list[float]] = [[], []]
    for round_ in range(ROUNDS[length] + 5):
        positions = np.arange(length, dtype="int32") + np.int32(rng.integers(0, 8192))
        for function, seconds in zip((first, second), times, strict=True):
            spent = time_call(function, positions)
            if round_ >= 5:  # what comes before warms up
                seconds.append(spent)
    return [median(seconds) for seconds in times]
