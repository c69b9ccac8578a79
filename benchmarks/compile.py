"""
Time the first token of ``Stream.generate``, from the start of a Python process on.

The first process finds an empty compile directory, the later ones what it left there: each in a fresh
process, with the file of the model in the system's cache.
"""

import tempfile
from pathlib import Path

from benchmarks.measure import Spread
from benchmarks.processes import MODEL, PROMPT, Process, start
from benchmarks.report import OURS, Report, Row

GOALS = {"c": (60, 12), "numba": (90, 20), "jax": (25, 25), "mlx": (20, 20)}
LOAD_GOAL = 4


def run(backends: list[str], report: Report, *, rounds: int) -> None:
    report.settings = {"model": MODEL, "prompt": repr(PROMPT), "warm processes": rounds}
    report.start()
    for backend in backends:
        with tempfile.TemporaryDirectory() as folder:
            cold = start(backend, 2, Path(folder))
            warm = [start(backend, 2, Path(folder)) for _ in range(rounds)]
        report.add(rows_of(backend, cold, warm))


def rows_of(backend: str, cold: Process, warm: list[Process]) -> list[Row]:
    cold_goal, warm_goal = GOALS[backend]

    def row(case: str, values: list[float], goal: float | None = None) -> Row:
        return Row(case, backend, OURS, "s", Spread.of(values), goal=goal)

    return [
        row("first token, cold", [cold.first], cold_goal),
        row("second token, cold", [cold.second]),
        row("first token, warm", [process.first for process in warm], warm_goal),
        row("second token, warm", [process.second for process in warm]),
        row("of it load_model, warm", [process.load for process in warm], LOAD_GOAL),
    ]
