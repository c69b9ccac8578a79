"""
How well a model predicts a long text as its cache runs over, one curve for each way to keep a cache.

    python examples/streaming_perplexity.py --tokens 3000 --window 60 --backend jax

writes a table, smollm2-4+60.csv, with the negative log-likelihood of every token, and draws the figure
smollm2-4+60.svg. A curve is added to the table as soon as it is done: after Ctrl-C, the same command goes on
with the curves that are missing.
"""

import argparse
import csv
import os
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import numpy.typing as npt

import pytensor_rope as rope
from pytensor_rope.layout import POSITIONS

type Curves = dict[str, npt.NDArray[np.float64]]
type Settings = dict[str, Any]


def main() -> None:
    options = parse_arguments()
    model = rope.load_model(options.model)
    text = options.text.read_text(encoding="utf-8") if options.text else manual()
    ids = np.array(model.tokenizer.encode(text)[: options.tokens])
    table, figure = (options.output.with_name(f"{options.output.name}.{end}") for end in ("csv", "svg"))

    curves = read_table(table, ids)
    caches = cache_settings(options.sinks, options.window, len(ids))
    try:
        for name, settings in caches.items():
            if name not in curves:
                curves[name] = score(model, ids, options.backend, name, settings)
                write_table(table, ids, curves)
    except KeyboardInterrupt:
        print(f"interrupted: {len(curves)} of {len(caches)} curves are in {table}")
        return
    curves = {name: curves[name] for name in caches}
    for name, losses in curves.items():
        print(f"{name:28} perplexity {np.exp(losses.mean()):8.2f}")
    draw(figure, curves, options.smooth, lap=2 * options.window)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="a name or a GGUF file (default: smollm2)")
    parser.add_argument("--text", type=Path, help="a UTF-8 file (default: the manual in pydoc)")
    parser.add_argument("--tokens", type=int, default=3000, help="tokens to score (default: 3000)")
    parser.add_argument("--sinks", type=int, default=4, help="first tokens to keep (default: 4)")
    parser.add_argument("--window", type=int, default=252, help="last tokens to keep (default: 252)")
    parser.add_argument("--backend", choices=("c", "numba", "jax", "mlx"), default="numba")
    parser.add_argument("--smooth", type=int, default=256, help="tokens in the running mean (default: 256)")
    parser.add_argument("--output", type=Path, help="path of the table and the figure, without .csv and .svg")
    options = parser.parse_args()
    if options.output is None:
        options.output = Path(f"{Path(options.model).stem}-{options.sinks}+{options.window}")
    return options


def manual() -> str:
    """Return the chapters of Python's manual that pydoc holds, the one on types first."""
    chapters = ["types", *(name for name in sorted(topics) if name != "types")]
    return "\n".join(topics[name] for name in chapters)


def cache_settings(sinks: int, window: int, n_token: int) -> dict[str, Settings]:
    """Return what each curve is called and how its cache is made, all but the first of one size."""
    with_sinks: dict[str, Settings] = {
        f"{positions} {sinks}+{window}": {"sinks": sinks, "window": window, "positions": positions}
        for positions in POSITIONS
    }
    return {
        "dense": {"sinks": 0, "window": n_token},
        **with_sinks,
        f"no sinks {sinks + window}": {"sinks": 0, "window": sinks + window},
    }


def score(
    model: rope.Model, ids: npt.NDArray[np.int_], backend: str, name: str, settings: Settings
) -> npt.NDArray[np.float64]:
    """Return the negative log-likelihood of each token but the first, in nats, ``(n - 1,)``."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    stream = model.compile(backend, **settings)
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=len(ids) - 1)
        return stream.score(ids, progress=lambda read: bar.update(task, completed=read))


def read_table(path: Path, ids: npt.NDArray[np.int_]) -> Curves:
    """Return the curves of an earlier run over the same tokens."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        (_, _, *names), *rows = csv.reader(file)
    if [int(row[1]) for row in rows] != ids[1:].tolist():
        raise SystemExit(f"{path} holds another text or model: remove it, or name another with --output.")
    return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names, start=2)}


def write_table(path: Path, ids: npt.NDArray[np.int_], curves: Curves) -> None:
    """Write one line a token, with its negative log-likelihood by each curve."""
    unfinished = path.with_name(f"{path.name}.partial")
    with unfinished.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["position", "token_id", *curves])
        for i, losses in enumerate(zip(*curves.values(), strict=True)):
            writer.writerow([i + 1, ids[i + 1], *(f"{loss:.6f}" for loss in losses)])
    os.replace(unfinished, path)


def draw(path: Path, curves: Curves, smooth: int, lap: int) -> None:
    """Draw the perplexity of the last ``smooth`` tokens at each position, with a line at each ``lap``."""
    try:
        from matplotlib import pyplot, ticker
    except ImportError:
        print('For the figure, install matplotlib: pip install "pytensor-rope[examples]".')
        return
    pyplot.rcParams["svg.fonttype"] = "none"  # text as text
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, losses in curves.items():
        means = np.exp(running_mean(losses, smooth))
        positions = np.arange(len(losses) - len(means) + 1, len(losses) + 1)
        step = max(1, len(means) // 400)  # more points would not be seen
        (line,) = axes.plot(positions[::step], means[::step], linewidth=1, label=name)
        if name == "dense":
            line.set_color("black")
    for position in range(lap, len(losses), lap) if len(losses) < 12 * lap else ():
        axes.axvline(position, color="lightgray", linewidth=0.6, zorder=0)
    axes.set(xlabel="position", ylabel=f"perplexity of the last {smooth} tokens", yscale="log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.legend(frameon=False, ncols=len(curves), loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path, metadata={"Date": None})
    print(f"{path} drawn")


def running_mean(values: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """Return the means of each ``n`` successive values."""
    n = min(n, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[n:] - sums[:-n]) / n


if __name__ == "__main__":
    main()
