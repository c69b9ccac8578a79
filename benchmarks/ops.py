"""Time single layers."""

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope
from benchmarks.measure import print_times, time_function


def run(backends: list[str]) -> None:
    for backend in backends:
        print_times(backend, "rotary_embedding, (1, 32, 512, 128) float32", *time_rotary(backend))
        print_times(backend, "rms_norm, (512, 512) float32", *time_rms_norm(backend))


def time_rotary(backend: str) -> tuple[float, float]:
    x = pt.tensor("x", shape=(None, 32, None, 128), dtype="float32")
    position_ids = pt.lvector("position_ids")
    values = np.random.default_rng(0).standard_normal((1, 32, 512, 128)).astype("float32")
    return time_function(
        lambda: rope.function([x, position_ids], rope.rotary_embedding(x, position_ids), backend=backend),
        values,
        np.arange(512),
    )


def time_rms_norm(backend: str) -> tuple[float, float]:
    x = pt.tensor("x", shape=(None, 512), dtype="float32")
    values = np.random.default_rng(0).standard_normal((512, 512)).astype("float32")
    return time_function(lambda: rope.function([x], rope.rms_norm(x), backend=backend), values)
