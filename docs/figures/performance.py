"""
Draw the time of a token against the floor, from results of `make bench`: docs/figures/decode.svg.

    python docs/figures/performance.py [FILE]
"""

import json
import sys
from pathlib import Path

from plotting import COLOURS, figure, save

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "linux-x86_64-2-cores.json"
BACKENDS = {"numpy": "NumPy", "c": "C", "numba": "Numba", "jax": "JAX", "mlx": "MLX"}
COLOUR_OF = {
    "pytensor-rope": COLOURS[0],
    "generic graph": "0.75",
    "by hand": COLOURS[2],
    "mlx-lm": COLOURS[1],
    "its matrix products": COLOURS[5],
}


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    draw(json.loads(path.read_text(encoding="utf-8"))["reports"]["decode"]["rows"])


def draw(rows):
    reading = [row for row in rows if row["subject"].startswith("reading memory") and row["unit"] == "s"]
    floor = min(row["spread"]["median"] for row in reading) * 1e3
    timed = [row for row in rows if not row["subject"].startswith("reading memory")]
    bars = [row for backend in BACKENDS for row in timed if row["backend"] == backend]
    fig, ax = figure(height=0.36 * len(bars) + 1.5)
    places, place, last = [], 0.0, None
    for row in bars:
        place += 1 if row["backend"] == last else 1.5
        last = row["backend"]
        places.append(place)
    for row, place in zip(bars, places, strict=True):
        spread = {name: row["spread"][name] * 1e3 for name in ("low", "median", "high")}
        name = row["subject"].partition(",")[0]
        ax.barh(place, spread["median"], height=0.8, color=COLOUR_OF[name])
        ax.plot([spread["low"], spread["high"]], [place, place], color="0.2", linewidth=1)
        times = f"{spread['median'] / floor:.1f} ×"
        ax.text(spread["high"], place, f"  {times}", va="center", fontsize=9)
    labels = [f"{BACKENDS[row['backend']]}: {row['subject'].replace('by hand, ', '')}" for row in bars]
    ax.set_yticks(places, labels, fontsize=9)
    ax.invert_yaxis()
    ax.axvline(floor, color="0.2", linewidth=1, linestyle="--")
    most = max(row["spread"]["high"] * 1e3 for row in bars)
    ax.set_xlim(0, most * 1.15)
    fig.supxlabel(f"ms a token; dashed: reading weights and cache, {floor:.0f} ms", fontsize=11)
    ax.grid(axis="y", visible=False)
    save(fig, HERE / "decode.svg")


if __name__ == "__main__":
    main()
