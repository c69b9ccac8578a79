"""
A byte-level decoder, trained from scratch on Python's manual and then streamed far past its training length.

    python examples/train_bytes.py --backend jax

shows how it gets on, compares it with a trigram model on text that neither has seen, and draws the figure
bytes.svg. Weights, the optimizer's state and the losses go to bytes.safetensors: after Ctrl-C, the same
command goes on from there, to the same end.
"""

import argparse
import json
import os
import platform
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from pydoc_data.topics import topics
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.tensor.special import log_softmax
from pytensor_ml.optim import (
    adamw,
    chain,
    clip_by_global_norm,
    cosine_schedule,
    join_schedules,
    linear_schedule,
)
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.numpy import save_file

import pytensor_rope as rope

type Bytes = npt.NDArray[np.int32]
type Losses = npt.NDArray[np.float64]

# What a run depends on: another run's file is not gone on with.
SETTINGS = ("steps", "batch", "length", "hidden", "layers", "rate", "seed", "backend")


def main() -> None:
    options = parse_arguments()
    text = manual()
    train, held_out = split(text)
    print(f"Python {platform.python_version()}: {len(train):,} bytes to train on, {len(held_out):,} held out")
    print(f"SHA-256 of the text {sha256(text).hexdigest()[:16]}")

    training = Training(as_ids(train), as_ids(held_out), options)
    path = options.output.with_name(f"{options.output.name}.safetensors")
    training.restore(path)
    try:
        training.run()
    except KeyboardInterrupt:
        print(f"interrupted after {len(training.losses)} of {options.steps} steps, which are in {path}")
        return
    finally:
        training.save(path)

    trigram = np.exp(score_n_grams(train, held_out, order=3).mean())
    decoder = training.decoder
    curves = score_streams(decoder, as_ids(held_out)[: options.stream], options)
    report(training, trigram, curves)
    draw(options.output.with_name(f"{options.output.name}.svg"), training, trigram, curves)
    print(write(decoder, held_out[: options.length], options))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("c", "numba", "jax", "mlx"), default="jax")
    parser.add_argument("--steps", type=int, default=1200, help="training steps (default: 1200)")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text a step (default: 16)")
    parser.add_argument("--length", type=int, default=128, help="bytes of a piece (default: 128)")
    parser.add_argument("--hidden", type=int, default=128, help="hidden size, in 32s (default: 128)")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers (default: 4)")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate (default: 0.003)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: 0)")
    parser.add_argument("--evaluate", type=int, default=100, help="steps between evaluations (default: 100)")
    parser.add_argument("--stream", type=int, help="bytes to stream over (default: all that is held out)")
    parser.add_argument("--write", type=int, default=512, help="bytes to write at the end (default: 512)")
    parser.add_argument("--output", type=Path, default=Path("bytes"), help="path of what is written")
    return parser.parse_args()


# Text


def manual() -> bytes:
    """Return the chapters of Python's manual that pydoc holds, without paragraphs that were there before."""
    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs)).encode()


def split(text: bytes) -> tuple[bytes, bytes]:
    """Return the first nine tenths, to train on, and the rest, which is held out."""
    at = len(text) * 9 // 10
    return text[:at], text[at:]


def as_ids(text: bytes) -> Bytes:
    return np.frombuffer(text, "uint8").astype("int32")


def pieces(ids: Bytes, starts: npt.NDArray[np.int64], length: int) -> Bytes:
    """Return ``length`` tokens from each of ``starts`` on, and the one after them, ``(n, length + 1)``."""
    return ids[starts[:, None] + np.arange(length + 1)]


# The model to beat


def score_n_grams(train: bytes, text: bytes, order: int) -> Losses:
    """
    Return the negative log-likelihood of each byte but the first given the ``order - 1`` before it, in nats.

    The n-gram model interpolates each order with the next lower one, down to 256 bytes that are all alike, by
    the smoothing of Witten and Bell: a context h with k different successors among n has
    p(b | h) = (count(hb) + k p(b | shorter h)) / (n + k).
    """
    counts = Counter(train[i : i + n] for n in range(1, order + 1) for i in range(len(train) - n + 1))
    kinds = Counter(gram[:-1] for gram in counts)
    seen: Counter[bytes] = Counter()
    for gram, count in counts.items():
        seen[gram[:-1]] += count

    def probability(at: int) -> float:
        p = 1 / 256
        for n in range(min(order, at + 1)):
            context = text[at - n : at]
            if context not in seen:
                break
            p = (counts[text[at - n : at + 1]] + kinds[context] * p) / (seen[context] + kinds[context])
        return p

    return -np.log([probability(at) for at in range(1, len(text))])


# Training


class Training:
    """A decoder on the way, with its optimizer's state and the losses so far."""

    def __init__(self, train: Bytes, held_out: Bytes, options: argparse.Namespace) -> None:
        self.options = options
        self.train, self.held_out = train, held_out
        self.decoder = make_decoder(options)
        ids = pt.tensor("ids", shape=(options.batch, options.length + 1), dtype="int32")
        loss = cross_entropy(self.decoder(ids[:, :-1]), ids[:, 1:])
        # The optimizer's rates are in floatX, which would widen float32 weights.
        with config.change_flags(floatX=self.decoder.dtype):
            updates = optimizer(options.rate, options.steps)(loss, list(self.decoder.parameters.values()))
        self.state = {variable.name: variable for variable in updates}
        self.step = rope.function([ids], loss, updates=updates, backend=options.backend)
        self.loss = rope.function([ids], loss, backend=options.backend)
        self.losses: list[float] = []
        self.held_out_losses: list[tuple[int, float]] = []
        self.seconds = 0.0

    def run(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns) as bar:
            task = bar.add_task("", total=self.options.steps, completed=len(self.losses))
            while len(self.losses) < self.options.steps:
                start = process_time()
                self.losses.append(float(self.step(self.batch(len(self.losses)))))
                if len(self.losses) % self.options.evaluate == 0 or len(self.losses) == self.options.steps:
                    self.held_out_losses.append((len(self.losses), self.evaluate()))
                self.seconds += process_time() - start
                bar.update(task, advance=1, description=self.describe())

    def batch(self, step: int) -> Bytes:
        """Return pieces of text that depend on the seed and the step alone."""
        rng = np.random.default_rng((self.options.seed, step))
        length = self.options.length
        return pieces(self.train, rng.integers(0, len(self.train) - length, self.options.batch), length)

    def evaluate(self) -> float:
        """Return the mean loss of the pieces side by side that the held-out text is made of."""
        batch, length = self.options.batch, self.options.length
        starts = np.arange(0, len(self.held_out) - length, length)
        whole = len(starts) // batch * batch
        batches = starts[:whole].reshape(-1, batch)
        return float(np.mean([self.loss(pieces(self.held_out, of_batch, length)) for of_batch in batches]))

    def describe(self) -> str:
        held_out = f", held out {np.exp(self.held_out_losses[-1][1]):.2f}" if self.held_out_losses else ""
        return f"perplexity {np.exp(np.mean(self.losses[-50:])):.2f}{held_out}"

    def save(self, path: Path) -> None:
        """Write all that is needed to go on, in one step."""
        tensors = {name: np.array(variable.get_value()) for name, variable in self.state.items()}
        run = {name: getattr(self.options, name) for name in SETTINGS}
        progress = {"losses": self.losses, "held_out": self.held_out_losses, "seconds": self.seconds}
        metadata = {"run": json.dumps(run), "progress": json.dumps(progress)}
        unfinished = path.with_name(f"{path.name}.partial")
        save_file(tensors, unfinished, metadata)
        os.replace(unfinished, path)

    def restore(self, path: Path) -> None:
        """Go on from a file of the same run, if there is one."""
        if not path.exists():
            return
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            if json.loads(metadata["run"]) != {name: getattr(self.options, name) for name in SETTINGS}:
                raise SystemExit(f"{path} holds another run: remove it, or name another with --output.")
            for name, variable in self.state.items():
                variable.set_value(file.get_tensor(name))
        progress = json.loads(metadata["progress"])
        self.losses, self.seconds = progress["losses"], progress["seconds"]
        self.held_out_losses = [(step, loss) for step, loss in progress["held_out"]]


def make_decoder(options: argparse.Namespace) -> rope.Decoder:
    shape = rope.DecoderConfig(
        vocab_size=256,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        n_layer=options.layers,
        n_head=options.hidden // 16,
        n_kv_head=options.hidden // 32,
        head_dim=16,
        context_length=options.length,
        tied=True,
    )
    return rope.Decoder("bytes", config=shape, seed=options.seed)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the mean negative log-likelihood of the targets, in nats."""
    chosen = pt.take_along_axis(log_softmax(logits, axis=-1), targets[..., None], axis=-1)
    return -chosen.mean(dtype=logits.dtype, acc_dtype=logits.dtype)


def optimizer(rate: float, steps: int) -> Callable[..., Any]:
    """Return AdamW of clipped gradients, its rate rising for a twentieth of the steps, then falling."""
    warm_up = max(1, steps // 20)
    rise = linear_schedule(0.0, warm_up, final_learning_rate=rate)
    fall = cosine_schedule(rate, max(1, steps - warm_up), final_learning_rate=rate / 10)
    schedule = join_schedules([rise, fall], boundaries=[warm_up])
    is_matrix = lambda parameter: parameter.ndim > 1  # noqa: E731
    return chain(clip_by_global_norm(1.0), adamw(schedule, weight_decay=0.1, beta2=0.99, mask=is_matrix))


# Streams


def score_streams(decoder: rope.Decoder, ids: Bytes, options: argparse.Namespace) -> dict[str, Losses]:
    """Return the negative log-likelihood of each byte but the first, by streams with three kinds of cache."""
    length = options.length
    few = ids[: 16 * length]  # enough to see where it leads
    streams = {
        "every byte kept": (rope.SinkCache(0, len(few)), few),
        f"{length} bytes, no sinks": (rope.SinkCache(0, length), ids),
        f"4 sinks + {length - 4} bytes": (rope.SinkCache(4, length - 4), ids),
    }
    return {
        name: rope.Stream(decoder, cache, backend=options.backend).score(read)
        for name, (cache, read) in streams.items()
    }


def write(decoder: rope.Decoder, prompt: bytes, options: argparse.Namespace) -> str:
    """Return a prompt as long as the training pieces, and what the decoder writes after it."""
    cache = rope.SinkCache(4, options.length - 4)
    stream = rope.Stream(decoder, cache, backend=options.backend)
    written = stream.generate(as_ids(prompt), options.write, temperature=0.7, seed=options.seed)
    return f"{prompt.decode(errors='replace')} >>> {bytes(written).decode(errors='replace')}"


def report(training: Training, trigram: float, curves: dict[str, Losses]) -> None:
    n_parameter = sum(np.prod(p.type.shape) for p in training.decoder.parameters.values())
    held_out = np.exp(training.held_out_losses[-1][1])
    print(f"{n_parameter:,} parameters, {training.seconds:.0f} s of processor time")
    print(f"{'perplexity a byte, trigrams':40}{trigram:8.3f}")
    print(f"{'decoder, pieces as long as in training':40}{held_out:8.3f}")
    for name, losses in curves.items():
        print(f"{f'stream of {len(losses) + 1:,}, {name}':40}{np.exp(losses.mean()):8.3f}")


def draw(path: Path, training: Training, trigram: float, curves: dict[str, Losses]) -> None:
    """Draw the losses of the training, and each stream's perplexity against the position."""
    try:
        from matplotlib import pyplot, ticker
    except ImportError:
        print('For the figure, install matplotlib: pip install "pytensor-rope[examples]".')
        return
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bytes"})  # text as text, always the same
    figure, (above, below) = pyplot.subplots(2, figsize=(6, 6), layout="constrained")
    losses = smoothed(np.array(training.losses), 20)
    shown = slice(None, None, max(1, len(losses) // 200))  # more points would not be seen
    steps = np.arange(len(training.losses) - len(losses), len(training.losses)) + 1
    above.plot(steps[shown], np.exp(losses)[shown], linewidth=1, label="training")
    at, held_out = zip(*training.held_out_losses, strict=True)
    above.plot(at, np.exp(held_out), marker=".", label="held out")
    above.axhline(trigram, color="black", linestyle=":", label="trigrams, held out")
    above.set(xlabel="step", ylabel="perplexity a byte", yscale="log")
    for name, of_stream in curves.items():
        means = np.exp(smoothed(of_stream, 512))
        positions = np.arange(len(of_stream) - len(means), len(of_stream)) + 1
        shown = slice(None, None, max(1, len(means) // 200))
        below.plot(positions[shown], means[shown], linewidth=1, label=name)
    below.axvline(training.options.length, color="black", linestyle=":", label="training length")
    below.set(xlabel="position", ylabel="perplexity of the last 512 bytes", yscale="log")
    for axes in (above, below):
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    print(f"{path} drawn")


def smoothed(values: Losses, n: int) -> Losses:
    """Return the means of each ``n`` successive values."""
    n = min(n, len(values))
    return np.convolve(values, np.full(n, 1 / n), "valid")


if __name__ == "__main__":
    main()
