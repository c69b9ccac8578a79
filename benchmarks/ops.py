"""
Time rotation and RMSNorm of (1, 32, 512, 128) in float32, forward and backward, over a copy of the input.

In one run, in turns: NumPy's ``x.copy()``, this package on each backend, the generic graph there, JAX by hand
under ``jax.jit``, and MLX's own ``mx.fast``. Each call has another input, from a pool larger than the caches.
Inputs and outputs are the library's own arrays. What each computes is compared before it is timed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope
from benchmarks import ops_jax
from benchmarks.generic import generic
from benchmarks.measure import (
    Outputs,
    Pool,
    check_close,
    compiled,
    finish,
    library_of,
    take_turns,
    to_library,
)
from benchmarks.report import OURS, Ratio, Report, Row

SHAPE = (1, 32, 512, 128)
SEQ, HEAD_DIM = SHAPE[-2:]
COPY = "x.copy()"
EPSILON = 1e-6
TOLERANCE = 1e-2

FORWARD_GOALS = {"c": 1.5, "numba": 1.5, "jax": 3}
BACKWARD_GOALS = {"c": 4, "numba": 4, "jax": 8}
MLX_GOAL = 1.1

type Arguments = Callable[[int, str], Sequence[Any]]


@dataclass(frozen=True)
class Case:
    """Something to compute: its graph, and the arguments of call ``i`` in a library."""

    name: str
    inputs: list[Any]
    outputs: list[Any]
    arguments: Arguments
    by_hand: Callable[..., Any]
    goals: Mapping[str, float]
    fast: str | None = None


def run(backends: list[str], report: Report, *, rounds: int, calls: int = 5) -> None:
    pool = Pool(SHAPE)
    report.settings = {"shape": SHAPE, "inputs": len(pool), "rounds": rounds, "calls a round": calls}
    report.start()
    for case in cases(pool):
        report.add(measure(case, pool, backends, rounds, calls))
    report.add([copy_bandwidth(report.rows[0])])


def cases(pool: Pool) -> list[Case]:
    x, g = (pt.tensor(name, shape=SHAPE, dtype="float32") for name in ("x", "g"))
    positions = pt.tensor("position_ids", shape=(SEQ,), dtype="int32")
    cos, sin = (pt.tensor(name, shape=(SEQ, HEAD_DIM // 2), dtype="float32") for name in ("cos", "sin"))
    weight = pt.tensor("weight", shape=(HEAD_DIM,), dtype="float32")
    rotated = rope.rotary_embedding(x, positions)
    turned = rope.RotaryEmbedding(head_dim=HEAD_DIM).rotate(x, cos, sin)
    normalized = rope.rms_norm(x, weight, epsilon=EPSILON)
    small = _Small()

    def arrays(i: int, library: str) -> tuple[Any, Any]:
        return pool.take(i, library), pool.take(i + len(pool) // 2, library)

    return [
        Case(
            "rotation",
            [x, positions],
            [rotated],
            lambda i, library: (arrays(i, library)[0], small.positions(i, library)),
            ops_jax.rotation,
            FORWARD_GOALS,
            "mx.fast.rope",
        ),
        Case(
            "rotation, angles given",
            [x, cos, sin],
            [turned],
            lambda i, library: (arrays(i, library)[0], *small.angles(i, library)),
            ops_jax.rotation_of_angles,
            FORWARD_GOALS,
        ),
        Case(
            "rotation, backward",
            [g, positions],
            gradients(rotated, [x], g),
            lambda i, library: (arrays(i, library)[1], small.positions(i, library)),
            ops_jax.rotation_backward,
            BACKWARD_GOALS,
        ),
        Case(
            "RMSNorm",
            [x, weight],
            [normalized],
            lambda i, library: (arrays(i, library)[0], small.weight(library)),
            ops_jax.normalization,
            FORWARD_GOALS,
            "mx.fast.rms_norm",
        ),
        Case(
            "RMSNorm, backward",
            [g, x, weight],
            gradients(normalized, [x, weight], g),
            lambda i, library: (*arrays(i, library)[::-1], small.weight(library)),
            ops_jax.normalization_backward,
            BACKWARD_GOALS,
        ),
    ]


def gradients(output: Any, inputs: list[Any], g: Any) -> list[Any]:
    """Return the gradients for the inputs, given the output's."""
    gradients: list[Any] = pytensor.grad(None, inputs, known_grads={output: g})
    return gradients


class _Small:
    """The small arguments, random too, in each library."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._starts = [int(start) for start in rng.integers(0, 4096, 16)]
        self._weight = rng.standard_normal(HEAD_DIM, dtype="float32")
        self._made: dict[Any, Any] = {}

    def positions(self, i: int, library: str) -> Any:
        start = self._starts[i % len(self._starts)]
        return self._own(("positions", start), np.arange(start, start + SEQ, dtype="int32"), library)

    def angles(self, i: int, library: str) -> tuple[Any, Any]:
        start = self._starts[i % len(self._starts)]
        frequencies = 10_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = np.arange(start, start + SEQ)[:, None] * frequencies
        cos, sin = np.cos(angle).astype("float32"), np.sin(angle).astype("float32")
        return self._own(("cos", start), cos, library), self._own(("sin", start), sin, library)

    def weight(self, library: str) -> Any:
        return self._own("weight", self._weight, library)

    def _own(self, name: Any, array: np.ndarray, library: str) -> Any:
        key = name, library
        if key not in self._made:
            self._made[key] = to_library(array, library)
        return self._made[key]


def measure(case: Case, pool: Pool, backends: list[str], rounds: int, calls: int) -> list[Row]:
    functions = functions_of(case, backends)
    results = {key: call(*case.arguments(0, library_of(key[0]))) for key, call in functions.items()}
    right = next(iter(results.values()))
    for key, outputs in results.items():
        for got, expected in zip(outputs, right, strict=True):
            scale = max(1.0, float(np.abs(np.asarray(expected)).max()))
            check_close(f"{case.name}, {key}", got, expected, TOLERANCE * scale)

    copy_key = "numpy", COPY
    spreads = take_turns(
        {copy_key: lambda i: pool.take(i, "numpy").copy()}
        | {
            key: lambda i, call=call, key=key: call(*case.arguments(i, library_of(key[0])))
            for key, call in functions.items()
        },
        rounds=rounds,
        calls=calls,
        settle=2,
        budget=20,
    )
    rows = []
    for (backend, subject), spread in spreads.items():
        ratios = [Ratio(COPY, spread.median / spreads[copy_key].median)]
        if subject == OURS:
            ratios = [Ratio(COPY, ratios[0].value, case.goals.get(backend))]
            if backend == "mlx" and case.fast is not None:
                ratios.append(Ratio(case.fast, spread.median / spreads["mlx", case.fast].median, MLX_GOAL))
        rows.append(Row(case.name, backend, subject, "s", spread, tuple(ratios if subject != COPY else ())))
    return rows


def copy_bandwidth(row: Row) -> Row:
    """Return the bytes a second that a copy reads and writes together."""
    moved = 2 * 4 * int(np.prod(SHAPE))
    return Row("copy bandwidth", row.backend, row.subject, "B/s", row.spread.of_rate(moved))


def functions_of(case: Case, backends: list[str]) -> dict[tuple[str, str], Callable[..., Outputs]]:
    """Return the functions to compare, by backend and by whom."""
    functions: dict[tuple[str, str], Callable[..., Outputs]] = {}
    for backend in backends:
        functions[backend, OURS] = compiled(case.inputs, case.outputs, backend)
        functions[backend, "generic graph"] = compiled(case.inputs, generic(case.outputs), backend)
        if backend == "jax":
            functions[backend, "by hand, jax.jit"] = ops_jax.waiting(case.by_hand)
        if backend == "mlx" and case.fast is not None:
            functions[backend, case.fast] = _mlx_fast(case.fast)
    return functions


def _mlx_fast(name: str) -> Callable[..., Outputs]:
    import mlx.core as mx

    if name == "mx.fast.rms_norm":
        return lambda x, weight: finish([mx.fast.rms_norm(x, weight, EPSILON)], "mlx")

    def rotate(x: Any, positions: Any) -> Outputs:
        options = {"traditional": False, "base": 10_000.0, "scale": 1.0, "offset": positions[0]}
        return finish([mx.fast.rope(x, HEAD_DIM, **options)], "mlx")

    return rotate
