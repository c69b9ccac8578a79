"""
Time reading a prompt of SmolLM2 into an empty cache, over the same matrix products alone.

The products are those of all layers for all tokens at once, and of the output head for the last one, in the
library that the backend computes with: NumPy for C and Numba, JAX, MLX. They multiply random matrices of the
model's shapes, the weights its own. Each call of a stream reads another prompt, from ``Stream.reset`` on.
JAX is written by hand too: the whole prompt at once under ``jax.jit``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import pytensor_rope as rope
from benchmarks.measure import Spread, check_close, library_of, take_turns
from benchmarks.products import PRODUCTS, products
from benchmarks.report import NAMES, OURS, Ratio, Report, Row
from pytensor_rope.checkpoints import load_checkpoint

MODEL = "smollm2"
SINKS, WINDOW = 4, 1020
BY_HAND = "by hand, jax.jit"
GOAL = 1.5
TOLERANCE = 1e-2


def run(backends: list[str], report: Report, *, rounds: int, tokens: int) -> None:
    model = rope.load_model(MODEL)
    report.settings = {"model": MODEL, "tokens": tokens, "rounds": rounds}
    report.start()
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, model.config.vocab_size, (16, tokens)).astype("int32")
    streams = {backend: model.compile(backend, sinks=SINKS, window=WINDOW) for backend in backends}
    subjects: dict[tuple[str, str], Callable[[int], object]] = {}
    for backend, stream in streams.items():
        subjects[backend, OURS] = reading(stream, prompts)
    weights = load_checkpoint(MODEL).weights
    for library in dict.fromkeys(map(library_of, backends)):
        subjects[library, PRODUCTS] = products(weights, model.config, tokens, library)
    if "jax" in backends:
        from benchmarks.llama_jax import JaxLlama

        by_hand = JaxLlama(weights, model.config, SINKS, WINDOW)
        subjects["jax", BY_HAND] = lambda i: by_hand.prefill(prompts[i % len(prompts)])
    check({key: subject for key, subject in subjects.items() if key[1] != PRODUCTS})
    spreads = take_turns(subjects, rounds=rounds, settle=0, budget=40)
    report.add(rows_of(spreads, tokens))


def reading(stream: rope.Stream, prompts: np.ndarray) -> Callable[[int], np.ndarray]:
    def read(i: int) -> np.ndarray:
        stream.reset()
        logits: np.ndarray = stream.prefill(prompts[i % len(prompts)])[0]
        return logits

    return read


def check(subjects: dict[tuple[str, str], Callable[[int], Any]]) -> None:
    """See that all give the same logits after the same prompt."""
    logits = {key: subject(0) for key, subject in subjects.items()}
    right = next(iter(logits.values()))
    for key, got in logits.items():
        check_close(f"{key}", got, right, TOLERANCE)


def rows_of(spreads: dict[tuple[str, str], Spread], tokens: int) -> list[Row]:
    rows = []
    for (backend, subject), spread in spreads.items():
        ratios: tuple[Ratio, ...] = ()
        if subject != PRODUCTS:
            library = library_of(backend)
            alone = spreads[library, PRODUCTS].median
            ratios = (
                Ratio(
                    f"products in {NAMES[library]}", spread.median / alone, GOAL if subject == OURS else None
                ),
            )
        rows.append(Row(f"a prompt of {tokens} tokens", backend, subject, "s", spread, ratios))
    return rows
