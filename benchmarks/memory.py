"""
Measure the memory of a process that streams SmolLM2, loaded and compiled before by another one.

Resident memory is what the process has after its tokens, peak memory the most it ever had.
"""

from benchmarks.measure import Spread
from benchmarks.processes import MODEL, start
from benchmarks.report import OURS, Report, Row

GOALS = {"c": 800e6, "numba": 950e6, "jax": 1300e6, "mlx": 1300e6}


def run(backends: list[str], report: Report, *, tokens: int) -> None:
    report.settings = {"model": MODEL, "tokens": tokens}
    report.start()
    for backend in backends:
        start(backend, 2)  # compiles
        process = start(backend, tokens)
        report.add(
            [
                Row("resident", backend, OURS, "B", Spread.of([process.resident]), goal=GOALS[backend]),
                Row("peak", backend, OURS, "B", Spread.of([process.peak])),
            ]
        )
