"""What the benchmarks share: the backends of this machine, and how a function is timed."""

import importlib.util
import os
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

BACKENDS = ("c", "numba", "jax", "mlx")
PACKAGES = {"jax": "jax", "mlx": "mlx"}


def installed_backends() -> list[str]:
    return [name for name in BACKENDS if _is_installed(name)]


def _is_installed(backend: str) -> bool:
    package = PACKAGES.get(backend)
    return package is None or importlib.util.find_spec(package) is not None


def describe_machine() -> str:
    return f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def time_function(
    compile_function: Callable[[], Callable[..., object]], *inputs: np.ndarray
) -> tuple[float, float]:
    """Return the seconds to compile and call once, and of a later call."""
    start = perf_counter()
    function = compile_function()
    np.asarray(function(*inputs))
    first = perf_counter() - start
    return first, median(time_call(function, *inputs) for _ in range(20))


def time_call(function: Callable[..., object], *inputs: np.ndarray) -> float:
    start = perf_counter()
    np.asarray(function(*inputs))  # JAX and MLX finish their work when the values are read
    return perf_counter() - start


def print_times_header() -> None:
    print(f"{'backend':8} {'what':44} {'first':>10} {'then':>12}")


def print_times(backend: str, what: str, first: float, later: float) -> None:
    print(f"{backend:8} {what:44} {first:8.2f} s {later * 1e3:9.3f} ms", flush=True)
