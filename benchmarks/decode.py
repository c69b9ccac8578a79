"""
Time a token of SmolLM2 at a full cache of 4 + 1020 tokens.

The cache holds keys and values of 1,023 random tokens, read once by one backend and taken to the others
through a file. From then on all decode greedily, a few tokens a turn: this package's ``Stream.generate`` on
each backend, the generic graph there, JAX by hand, MLX by hand with ``mx.fast``, and mlx-lm if it is
installed. Beside them are each library's matrix products alone. The floor is the time that NumPy takes, in
the same turns, to read as many bytes as weights and cache have, with one thread or two, whichever is faster.

Before the first turn all read the same tokens, and their logits are compared. mlx-lm sees the sinks at their
true distance, so it is compared at the first token, where nothing has left the cache yet.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope
from benchmarks.generic import generic
from benchmarks.measure import Spread, check_close, library_of, memory_readers, take_turns
from benchmarks.products import PRODUCTS, products
from benchmarks.report import OURS, Ratio, Report, Row
from pytensor_rope.checkpoints import load_checkpoint
from pytensor_rope.stream_files import read_stream_file

MODEL = "smollm2"
SINKS, WINDOW = 4, 1020
TOLERANCE = {"float32": 1e-2, "float16": 1.0}
CHECKED = 3
FIRST = 1234  # the token that all write on from
FLOOR = "the floor"
READING = "reading memory, "
BY_HAND = {"jax": "by hand, jax.jit", "mlx": "by hand, mx.fast"}
MLX_LM = "mlx-lm"

GOALS = {"c": 1.5, "numba": 1.4, "jax": 1.6}
GOAL_OVER_MLX_LM = 0.65

type State = dict[str, np.ndarray]


class Reader(Protocol):
    """What reads one token at a time."""

    def step(self, token: int) -> np.ndarray:
        """Read one token; return the logits, ``(vocab_size,)``."""


def run(
    backends: list[str], report: Report, *, rounds: int, tokens: int, dtype: str, with_generic: bool
) -> None:
    if dtype == "float16" and "numba" in backends:
        print("Numba has no float16 arrays: left out")
        backends = [backend for backend in backends if backend != "numba"]
    model = rope.load_model(MODEL, dtype=dtype)
    streams = {backend: model.compile(backend, sinks=SINKS, window=WINDOW) for backend in backends}
    weights = load_checkpoint(MODEL, dtype).weights
    n_bytes = sum(weight.nbytes for weight in weights.values()) + next(iter(streams.values())).nbytes
    report.settings = {
        "model": MODEL,
        "dtype": dtype,
        "cache": f"{SINKS} + {WINDOW}",
        "MB read a token": round(n_bytes / 1e6),
        "rounds": rounds,
        "tokens a round": tokens,
    }
    report.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.safetensors"
        state = fill(streams, path)
        readers = readers_of(model.config, streams, weights, state, with_generic)
    check(readers, dtype)

    texts = {key: text(reader) for key, reader in readers.items()}
    for written in texts.values():  # what is compiled with the first tokens
        next(written), next(written)
    subjects: dict[Any, Callable[[int], object]] = {
        key: lambda i, written=written: next(written) for key, written in texts.items()
    }
    subjects |= {
        (library, PRODUCTS): products(weights, model.config, 1, library)
        for library in dict.fromkeys(map(library_of, backends))
        if library != "numpy" or dtype == "float32"  # NumPy multiplies float16 without its BLAS
    }
    memory = memory_readers(n_bytes)
    subjects |= {("numpy", f"{READING}{n} thread{'s' * (n > 1)}"): reader for n, reader in memory.items()}
    spreads = take_turns(subjects, rounds=rounds, calls=tokens, settle=4, budget=60, value=fmean)
    report.add(rows_of(spreads, n_bytes, has_goals=dtype == "float32"))


def fill(streams: dict[str, rope.Stream], path: Path) -> State:
    """Let a stream read all tokens but one that fit into its cache, and give its state to the others."""
    backend = next(name for name in ("jax", "numba", "c", "mlx") if name in streams)
    vocabulary = streams[backend].decoder.config.vocab_size
    streams[backend].prefill(np.random.default_rng(0).integers(0, vocabulary, SINKS + WINDOW - 1))
    streams[backend].save(path)
    for stream in streams.values():
        stream.load(path)
    return read_stream_file(path)[1]


def readers_of(
    config: rope.DecoderConfig,
    streams: dict[str, rope.Stream],
    weights: State,
    state: State,
    with_generic: bool,
) -> dict[tuple[str, str], Reader]:
    """Return who is timed, by backend and by name, each with the full cache."""
    readers: dict[tuple[str, str], Reader] = {}
    for backend, stream in streams.items():
        readers[backend, OURS] = _Ours(stream)
        if with_generic:
            readers[backend, "generic graph"] = GenericStep(stream.decoder, state, backend)
        for name, of_library in by_hand(backend).items():
            reader = of_library(weights, config, SINKS, WINDOW)
            reader.load(state)
            readers[backend, name] = reader
    return readers


def by_hand(backend: str) -> dict[str, Any]:
    """Return the decoders written in a backend's own library, by name."""
    if backend == "jax":
        from benchmarks.llama_jax import JaxLlama

        return {BY_HAND["jax"]: JaxLlama}
    if backend == "mlx":
        from benchmarks.llama_mlx import MlxLlama, MlxLmLlama

        installed = importlib.util.find_spec("mlx_lm") is not None
        return {BY_HAND["mlx"]: MlxLlama} | ({MLX_LM: MlxLmLlama} if installed else {})
    return {}


class _Ours:
    def __init__(self, stream: rope.Stream) -> None:
        self.stream = stream

    def step(self, token: int) -> np.ndarray:
        logits: np.ndarray = self.stream.step(token)[0]
        return logits


class GenericStep:
    """The decoder's step as PyTensor compiles its generic graph, with the state in shared variables."""

    def __init__(self, decoder: rope.Decoder, state: State, backend: str) -> None:
        layers = range(decoder.config.n_layer)
        old = rope.DecoderState(
            keys=[_share(state[f"keys.{i}"]) for i in layers],
            values=[_share(state[f"values.{i}"]) for i in layers],
            length=_share(state["length"]),
        )
        ids = pt.tensor("token_ids", shape=(1, 1), dtype="int32")
        hidden, new = decoder.attend(ids, old, rope.SinkCache(SINKS, WINDOW))
        logits = decoder.logits(hidden[:, 0])
        logits, *after = generic([logits, *new.keys, *new.values, new.length])
        updates = list(zip([*old.keys, *old.values, old.length], after, strict=True))
        self._step = rope.function([ids], logits, backend=backend, updates=updates)

    def step(self, token: int) -> np.ndarray:
        logits: np.ndarray = self._step(np.full((1, 1), token, "int32"))[0]
        return logits


def _share(array: np.ndarray) -> Any:
    return pytensor.shared(array.copy(), shape=array.shape)


def check(readers: dict[tuple[str, str], Reader], dtype: str) -> None:
    """See that all give the same logits for the same tokens."""
    tokens = np.random.default_rng(1).integers(0, 40_000, CHECKED).tolist()
    logits = {key: [reader.step(token) for token in tokens] for key, reader in readers.items()}
    right = next(iter(logits.values()))
    for key, got in logits.items():
        comparable = 1 if key[1] == MLX_LM else CHECKED
        check_close(f"{key}", got[:comparable], right[:comparable], TOLERANCE[dtype])


def text(reader: Reader) -> Iterator[int]:
    """Write greedily, a stream by its own method."""
    if isinstance(reader, _Ours):
        return reader.stream.generate([FIRST], max_tokens=None)
    return greedy(reader, FIRST)


def greedy(reader: Reader, token: int) -> Iterator[int]:
    while True:
        token = int(reader.step(token).argmax())
        yield token


def rows_of(spreads: dict[tuple[str, str], Spread], n_bytes: int, *, has_goals: bool) -> list[Row]:
    reading = {key: spread for key, spread in spreads.items() if key[1].startswith(READING)}
    floor = min(spread.median for spread in reading.values())
    rows: list[Row] = []
    for (backend, subject), spread in spreads.items():
        ours = subject == OURS
        ratios = [Ratio(FLOOR, spread.median / floor, GOALS.get(backend) if ours and has_goals else None)]
        if ours and backend == "jax":
            ratios.append(over(spreads, backend, BY_HAND["jax"], 1.0 if has_goals else None))
        if ours and backend == "mlx":
            ratios.append(over(spreads, backend, BY_HAND["mlx"]))
            if (backend, MLX_LM) in spreads:
                ratios.append(over(spreads, backend, MLX_LM, GOAL_OVER_MLX_LM if has_goals else None))
        rows.append(Row("a token", backend, subject, "s", spread, tuple(ratios)))
    bandwidths = [
        Row("read bandwidth", backend, subject, "B/s", spread.of_rate(n_bytes))
        for (backend, subject), spread in reading.items()
    ]
    return rows + bandwidths


def over(
    spreads: dict[tuple[str, str], Spread], backend: str, other: str, goal: float | None = None
) -> Ratio:
    return Ratio(other, spreads[backend, OURS].median / spreads[backend, other].median, goal)
