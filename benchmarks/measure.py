"""How things are timed: in turns, on fresh inputs, with their spread."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import pytensor_rope as rope
from benchmarks.machine import last_cache_bytes

type Outputs = list[Any]


@dataclass(frozen=True)
class Spread:
    """The median of ``n`` values, and the quartiles below and above it."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray[Any]) -> "Spread":
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return cls(median, low, high, np.size(values))

    def of_rate(self, amount: float) -> "Spread":
        """Return how much a second, where this is the seconds that ``amount`` takes."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, self.n)


def take_turns[K: Hashable](
    subjects: Mapping[K, Callable[[int], object]],
    *,
    rounds: int,
    calls: int = 1,
    settle: int = 1,
    budget: float = float("inf"),
    value: Callable[[list[float]], float] = median,
) -> dict[K, Spread]:
    """
    Return the seconds that a call of each subject takes.

    The subjects take turns, and each round begins with another one. A turn is ``settle`` calls that are not
    counted, in which caches and the threads of the one before calm down, and ``calls`` that give one value,
    their median unless ``value`` says otherwise. A subject is called with a number that is new each time, and
    returns when its work is done. One that has spent ``budget`` seconds in three turns or more takes no
    further ones.
    """
    seconds: dict[K, list[float]] = {name: [] for name in subjects}
    spent = dict.fromkeys(subjects, 0.0)
    names = list(subjects)
    number = 0
    for round_ in range(rounds):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            if spent[name] > budget and len(seconds[name]) >= 3:
                continue
            subject, begin = subjects[name], perf_counter()
            for i in range(number, number + settle):
                subject(i)
            times = [timed(subject, i) for i in range(number + settle, number + settle + calls)]
            seconds[name].append(value(times))
            spent[name] += perf_counter() - begin
            number += settle + calls
    return {name: Spread.of(values) for name, values in seconds.items()}


def timed(subject: Callable[[int], object], i: int) -> float:
    start = perf_counter()
    subject(i)
    return perf_counter() - start


def library_of(backend: str) -> str:
    """Return whose arrays a backend computes on."""
    return "numpy" if backend in ("c", "numba") else backend


def to_library(array: np.ndarray, library: str) -> Any:
    """Return an array of the library's own, on its default device."""
    if library == "jax":
        import jax

        with jax.enable_x64(True):
            return jax.block_until_ready(jax.device_put(array))
    if library == "mlx":
        import mlx.core as mx

        own = mx.array(array)
        mx.eval(own)
        return own
    return array


def finish(outputs: Any, library: str) -> Any:
    """Return outputs whose values are there: JAX and MLX return before they have computed."""
    if library == "jax":
        import jax

        jax.block_until_ready(outputs)
    elif library == "mlx":
        import mlx.core as mx

        mx.eval(outputs)
    return outputs


def compiled(inputs: list[Any], outputs: list[Any], backend: str) -> Callable[..., Outputs]:
    """
    Return a function compiled by this package, of the backend's own arrays.

    Its inputs come and its outputs stay on the device, as inside a model: neither is converted.
    """
    function = rope.function(inputs, outputs, backend=backend, trust_input=True).compiled
    library = library_of(backend)
    if library != "jax":
        return lambda *arrays: finish(function(*arrays), library)

    import jax

    def call(*arrays: Any) -> Outputs:
        with jax.enable_x64(True):
            outputs: Outputs = finish(function(*arrays), library)
            return outputs

    return call


class Pool:
    """
    Random arrays of one shape, together larger than the processor's caches: each call gets another one.

    They have a standard deviation of 1 and no zeros.
    """

    def __init__(self, shape: tuple[int, ...], *, most_bytes: int = 1 << 29) -> None:
        size = int(np.prod(shape)) * 4
        count = min(max(min(2 * last_cache_bytes(), most_bytes) // size, 4), 256)
        rng = np.random.default_rng(0)
        self._arrays = [rng.standard_normal(shape, dtype="float32") for _ in range(count)]
        self._of_library: dict[str, list[Any]] = {"numpy": self._arrays}

    def __len__(self) -> int:
        return len(self._arrays)

    def take(self, i: int, library: str) -> Any:
        """Return array ``i``, counted around, as the library's own."""
        if library not in self._of_library:
            self._of_library[library] = [to_library(array, library) for array in self._arrays]
        arrays = self._of_library[library]
        return arrays[i % len(arrays)]


def memory_readers(n_bytes: int, threads: Sequence[int] = (1, 2)) -> dict[int, Callable[[int], object]]:
    """Return functions that read as many bytes from memory once, by the number of threads they do it with."""
    numbers = np.random.default_rng(0).standard_normal(n_bytes // 4, dtype="float32")

    def reader(n: int) -> Callable[[int], object]:
        parts = np.array_split(numbers, n)
        if n == 1:
            return lambda i: parts[0].max()
        pool = ThreadPoolExecutor(n)
        return lambda i: list(pool.map(np.max, parts))

    return {n: reader(n) for n in threads}


def check_close(name: str, got: Any, right: Any, tolerance: float) -> None:
    """Refuse to time what computes something else."""
    error = np.abs(np.asarray(got, "float64") - np.asarray(right, "float64")).max()
    if not error <= tolerance:
        raise AssertionError(f"{name} is off by {error:.2g}, more than {tolerance:.2g}: it is not timed.")
