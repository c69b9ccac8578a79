"""
Measure how far angles are from the exact ones, and draw it.

    python docs/figures/accuracy.py          # the figure, docs/figures/angle-error.svg
    python docs/figures/accuracy.py table    # the tables of docs/accuracy.md
    python docs/figures/accuracy.py mlx      # the errors of MLX's own rotation
"""

import argparse
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytensor.tensor as pt
from plotting import COLOURS, figure, save

import pytensor_rope as rope
from pytensor_rope.frequencies import DynamicNTK

HEAD_DIM = 128
BASE = 10_000
TRAINED = 4096
POSITIONS = (2048, 8192, 131_072, 1_000_000, 4_000_000, 2**24 + 1, 2**31 - 1)
LENGTHS = (4097, 8192, 9001, 131_072, 1_000_000, 2**24 + 1, 2**31)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("figure", "table", "mlx"), default="figure")
    parser.add_argument("--backend", choices=("c", "numba", "jax", "mlx"), default="numba")
    options = parser.parse_args()
    if options.what == "figure":
        draw(options.backend)
    elif options.what == "mlx":
        print_mlx()
    else:
        print_errors(options.backend)
        print_kinds(options.backend)
        print_dynamic(options.backend)


# Exact values


def exact(positions, base=BASE):
    """Return cosines and sines, ``(2, positions, pairs)``, for positions that float64 holds exactly."""
    with mpmath.workdps(60):
        theta = [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / HEAD_DIM) for i in range(HEAD_DIM // 2)]
        # Positions in 256ths: whole numbers, so that the phase is exact in integers.
        turns = [int(mpmath.nint(t / (2 * mpmath.pi) * 2**192)) for t in theta]
    scaled = [int(p * 256) if isinstance(p, float) else int(p) * 256 for p in positions]
    whole = 2**200
    fractions = [[((p * turn + whole // 2) % whole - whole // 2) / whole for turn in turns] for p in scaled]
    angles = 2 * np.pi * np.array(fractions)
    return np.array([np.cos(angles), np.sin(angles)])


def worst(got, right):
    """Return the largest error of a cosine or sine at each position."""
    return np.abs(np.asarray(got, "float64") - right).max(axis=(0, 2))


# Ways to take the angle


def ways(backend):
    """Return each way as a function from integer positions to cosines and sines."""
    return {
        "float16 product": half_product,
        "bfloat16 product": bfloat16_product,
        "float32 product": ours(backend, exact=False),
        "fixed point, float32": ours(backend),
        "fixed point, float64": ours(backend, dtype="float64"),
    }


def ours(backend, dtype="float32", position_dtype="int64", scaling="none", with_length=False, exact=True):
    positions = pt.tensor("positions", shape=(None,), dtype=position_dtype)
    length = pt.tensor("length", shape=(), dtype="int64") if with_length else None
    layer = rope.RotaryEmbedding(head_dim=HEAD_DIM, base=BASE, scaling=scaling, exact=exact)
    outputs = layer.angles(positions, dtype=dtype, length=length)
    compiled = rope.function([positions, length] if with_length else [positions], outputs, backend=backend)
    return lambda given, *length: np.array(compiled(np.asarray(given, position_dtype), *length))


def symbolic(backend, dtype):
    """Return the angles of a layer that meets its head dimension only when it runs."""
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    like = pt.tensor("like", shape=(None, None, None), dtype=dtype)
    outputs = rope.RotaryEmbedding(base=BASE).angles(positions, like=like)
    compiled = rope.function([positions, like], outputs, backend=backend)
    return lambda given: np.array(compiled(given, np.zeros((1, len(given), HEAD_DIM), dtype)))


def half_product(positions):
    """Position, frequency, product, cosine and sine in float16: a table made in half precision."""
    theta = (1.0 / BASE ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype("float16")
    with np.errstate(over="ignore", invalid="ignore"):
        angle = np.asarray(positions).astype("float16")[:, None] * theta
        return np.array([np.cos(angle), np.sin(angle)])


def bfloat16_product(positions):
    """The same in bfloat16, each result rounded from float32."""
    theta = to_bfloat16(1.0 / BASE ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    angle = to_bfloat16(to_bfloat16(positions)[:, None] * theta)
    return np.array([to_bfloat16(np.cos(angle)), to_bfloat16(np.sin(angle))])


def to_bfloat16(x):
    """Round to the nearest float32 whose last 16 bits are 0, ties to even."""
    bits = np.asarray(x).astype("float32").view("uint32")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view("float32")


# What is shown


def draw(backend):
    edges = np.unique(np.geomspace(1, 2**31, 80).astype("int64"))
    rng = np.random.default_rng(0)
    drawn = [np.append(rng.integers(a, b, size=12), a) for a, b in pairwise(edges)]
    centres = np.sqrt(edges[:-1] * np.float64(edges[1:]))
    positions = np.concatenate(drawn)
    right = exact(positions)
    fig, ax = figure(height=4.6)
    order = [COLOURS[i] for i in (3, 4, 1, 0, 2)]
    for (name, way), colour in zip(ways(backend).items(), order, strict=True):
        error = worst(way(positions), right).reshape(len(centres), -1).max(axis=1)
        ax.plot(centres, np.maximum(error, 1e-16), color=colour, label=name)
        if np.isnan(error).any():  # Beyond 65,504 there is no float16.
            end = np.flatnonzero(np.isfinite(error))[-1]
            ax.plot(centres[end], error[end], "o", color=colour, zorder=5)
    ax.set(xscale="log", yscale="log", xlim=(1, 2**31), ylim=(3e-17, 3000))
    ax.set(xlabel="position (tokens)", ylabel="largest error of a cosine or sine")
    ax.set_yticks([1e-16, 1e-12, 1e-8, 1e-4, 1])
    ax.axvline(2**24, color="0.6", linewidth=1, linestyle=":")
    ax.text(2**24, 6e-14, " 2²⁴", color="0.35")
    ax.legend(loc="upper left", ncols=2, fontsize=9, frameon=False, columnspacing=1)
    save(fig, Path(__file__).parent / "angle-error.svg")


def print_errors(backend):
    right = exact(POSITIONS)
    columns = {name: worst(way(np.array(POSITIONS)), right) for name, way in ways(backend).items()}
    print(f"{HEAD_DIM} dimensions, base {BASE}, on {backend}\n")
    print("| position | " + " | ".join(columns) + " |")
    for i, position in enumerate(POSITIONS):
        print(f"| {position:,} | " + " | ".join(show(column[i]) for column in columns.values()) + " |")


def print_mlx():
    """Print the errors of `mlx.core.fast.rope`, of which mlx-lm makes its models."""
    import mlx.core as mx

    x = mx.concatenate([mx.ones((1, 1, 1, HEAD_DIM // 2)), mx.zeros((1, 1, 1, HEAD_DIM // 2))], axis=-1)
    options = {"traditional": False, "base": float(BASE), "scale": 1.0}
    right = exact(POSITIONS)
    print("| position | mlx.core.fast.rope |")
    for i, position in enumerate(POSITIONS):
        turned = np.array(mx.fast.rope(x, HEAD_DIM, offset=position, **options))
        print(f"| {position:,} | {show(worst(turned.reshape(2, 1, -1), right[:, [i]])[0])} |")


def print_kinds(backend):
    rng = np.random.default_rng(1)
    negative = -rng.integers(1, 2**31, size=500)
    print("\n| what | largest error |")
    for dtype in ("float32", "float64"):
        error = worst(ours(backend, dtype)(negative), exact(negative)).max()
        print(f"| 500 negative positions above -2^31, {dtype} | {show(error)} |")
    for limit in (10**6, 2**31):
        positions = rng.integers(0, limit, size=500)
        for dtype in ("float32", "float64"):
            error = worst(symbolic(backend, dtype)(positions), exact(positions)).max()
            print(f"| head_dim unknown, 500 positions below {limit:,}, {dtype} | {show(error)} |")
    for limit in (1000, 100_000):
        fractional = rng.integers(0, limit * 256, size=500) / 256
        for position_dtype in ("float32", "float64"):
            got = ours(backend, position_dtype=position_dtype)(fractional)
            error = worst(got, exact(fractional.tolist())).max()
            print(f"| 500 fractional positions below {limit:,} in {position_dtype} | {show(error)} |")


def print_dynamic(backend):
    rng = np.random.default_rng(2)
    scheme = DynamicNTK(factor=2.0, original_max_position_embeddings=TRAINED)
    ways = [ours(backend, dtype, scaling=scheme, with_length=True) for dtype in ("float32", "float64")]
    below = np.append(rng.integers(0, 2**31, size=500), 2**31 - 1)
    print(f"\nDynamicNTK, factor 2 of {TRAINED}, the same on {backend}\n")
    print("| length | float32, inside the length | float32, below 2^31 | float64, below 2^31 |")
    for length in LENGTHS:
        inside = np.append(rng.integers(0, length, size=500), length - 1)
        stretch = mpmath.mpf(2) * length / TRAINED - 1
        with mpmath.workdps(60):
            base = mpmath.mpf(BASE) * stretch ** (mpmath.mpf(HEAD_DIM) / (HEAD_DIM - 2))
        errors = [
            worst(way(positions, length), exact(positions, base)).max()
            for way, positions in ((ways[0], inside), (ways[0], below), (ways[1], below))
        ]
        print(f"| {length:,} | " + " | ".join(map(show, errors)) + " |")


def show(error):
    """Write an error in two digits. Float64's own rounding, in both values compared, is left out."""
    if np.isnan(error):
        return "overflows"
    if error < 1e-15:
        return "< 1e-15"
    return f"{error:.1e}".replace("e-0", "e-") if error < 0.01 else f"{error:.2f}"


if __name__ == "__main__":
    main()
