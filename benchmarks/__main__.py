"""Time the layers and the decoder on each installed backend.

Run with ``make bench``, or ``python -m benchmarks --backend numba --tokens 100``.
"""

import argparse
import importlib.util
import os
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope

BACKENDS = ("c", "numba", "jax", "mlx")
PACKAGES = {"jax": "jax", "mlx": "mlx"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="default: all here")
    parser.add_argument("--tokens", type=int, default=50, help="tokens to decode (default: 50)")
    options = parser.parse_args()
    backends = options.backend or [name for name in BACKENDS if is_installed(name)]

    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'backend':8} {'what':44} {'first':>10} {'then':>12}")
    for backend in backends:
        for what, measure in (
            ("rotary_embedding, (1, 32, 512, 128) float32", time_rotary),
            ("rms_norm, (512, 512) float32", time_rms_norm),
        ):
            first, later = measure(backend)
            print(f"{backend:8} {what:44} {first:8.2f} s {later * 1e3:9.3f} ms")
        first, later = time_decoding(backend, options.tokens)
        print(f"{backend:8} {'SmolLM2-135M, one token':44} {first:8.2f} s {later * 1e3:9.3f} ms")


def is_installed(backend: str) -> bool:
    package = PACKAGES.get(backend)
    return package is None or importlib.util.find_spec(package) is not None


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


def time_decoding(backend: str, n_tokens: int) -> tuple[float, float]:
    """Return the seconds to load, compile and give the first token, and of a later token."""
    start = perf_counter()
    model = rope.load_model("smollm2")
    stream = model.compile(backend, sinks=4, window=252)
    tokens = iter(stream.generate(model.tokenizer.encode("Gravity is"), max_tokens=None))
    next(tokens)
    first = perf_counter() - start
    next(tokens)  # a backend may compile the one-token step here

    times = []
    for _ in range(n_tokens):
        start = perf_counter()
        next(tokens)
        times.append(perf_counter() - start)
    return first, median(times)


if __name__ == "__main__":
    main()
