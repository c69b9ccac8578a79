"""Time exact angles against the customary float32 product of position and frequency."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope
from benchmarks.measure import compiled, library_of, take_turns, to_library
from benchmarks.report import OURS, Ratio, Report, Row

HEAD_DIM = 128
LENGTHS = {1: 100, 4096: 4}
INPUTS = 16


def run(backends: list[str], report: Report, *, rounds: int) -> None:
    report.settings = {"head_dim": HEAD_DIM, "dtype": "float32", "rounds": rounds}
    report.start()
    for backend in backends:
        functions = {name: compile_angles(backend, exact=name == "exact") for name in ("exact", "product")}
        for length, calls in LENGTHS.items():
            report.add(measure(backend, functions, length, rounds, calls))


def compile_angles(backend: str, *, exact: bool) -> Callable[..., Any]:
    position_ids = pt.ivector("position_ids")
    layer = rope.RotaryEmbedding(head_dim=HEAD_DIM, exact=exact)
    return compiled([position_ids], list(layer.angles(position_ids, dtype="float32")), backend)


def measure(
    backend: str, functions: dict[str, Callable[..., Any]], length: int, rounds: int, calls: int
) -> list[Row]:
    starts = np.random.default_rng(0).integers(0, 8192, INPUTS)
    inputs = [
        to_library(np.arange(length, dtype="int32") + np.int32(start), library_of(backend))
        for start in starts
    ]
    subjects = {
        name: lambda i, function=function: function(inputs[i % INPUTS])
        for name, function in functions.items()
    }
    spreads = take_turns(subjects, rounds=rounds, calls=calls, settle=2)
    case = f"angles of {length:,} position{'s' if length > 1 else ''}"
    ratio = Ratio("product", spreads["exact"].median / spreads["product"].median)
    return [
        Row(case, backend, f"{OURS}, exact", "s", spreads["exact"], (ratio,)),
        Row(case, backend, f"{OURS}, product", "s", spreads["product"]),
    ]
