"""
Fine-tune the attention of a pretrained decoder by low-rank updates of its query and value projections (LoRA).

    python examples/lora.py --steps 20 --rank 8

trains on Python's manual and prints the loss on a part that is held out, before and after, with speed and
peak memory. The updates go to lora.safetensors; merged into the weights, they make a stream of the same loss.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytensor
import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.graph.replace import graph_replace
from pytensor_ml.optim import adam
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.numpy import save_file
from train_bytes import cross_entropy, manual, pieces, split

import pytensor_rope as rope
from pytensor_rope.backends import CompiledFunction
from pytensor_rope.checkpoints import load_checkpoint

type Weights = Mapping[str, npt.NDArray[Any]]

ADAPTED = ("query", "value")


class LowRank(NamedTuple):
    """What a matrix ``(in, out)`` is updated by, the product of ``a (in, rank)`` and ``b (rank, out)``."""

    a: Any
    b: Any


def main() -> None:
    options = parse_arguments()
    checkpoint = load_checkpoint(options.model)
    train, held_out = (
        np.array(checkpoint.tokenizer.encode(part.decode(errors="replace")), "int32")
        for part in split(manual())
    )
    decoder = rope.Decoder(checkpoint.name, config=checkpoint.config, weights=checkpoint.weights)
    updates = low_rank_updates(decoder, options.rank, options.seed)
    scale = np.float32(options.alpha / options.rank)
    trained = [factor for update in updates.values() for factor in update]
    print(f"{n_value(decoder.parameters.values()):,} weights and {n_value(trained):,} to train")

    ids = pt.tensor("ids", shape=(options.batch, options.length + 1), dtype="int32")
    loss = adapted(cross_entropy(decoder(ids[:, :-1]), ids[:, 1:]), decoder, updates, scale)
    # The optimizer's rates are in floatX, which would widen float32 factors.
    with config.change_flags(floatX=decoder.dtype):
        step = rope.function([ids], loss, updates=adam(options.rate)(loss, trained), backend=options.backend)
    evaluate = rope.function([ids], loss, backend=options.backend)

    starts = np.arange(options.tests * options.batch) * options.length
    tests = pieces(held_out, starts, options.length)
    before = mean_loss(evaluate, tests, options.batch)
    fine_tune(step, train, options)
    after = mean_loss(evaluate, tests, options.batch)
    print(f"loss on {len(tests)} held-out pieces: {before:.4f} before, {after:.4f} after")
    print(f"peak memory {peak_memory() / 2**20:,.0f} MiB")

    factors = {name: LowRank(*map(value_of, update)) for name, update in updates.items()}
    save_file(
        {f"{name}.{k}": v for name, of in factors.items() for k, v in of._asdict().items()}, options.output
    )
    merged = merge(checkpoint.weights, factors, scale)
    stream = rope.Stream(
        rope.Decoder(config=checkpoint.config, weights=merged),
        rope.SinkCache(4, options.length),
        backend=options.backend,
    )
    print(f"loss of a stream with merged weights: {np.mean([stream.score(piece) for piece in tests]):.4f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="a name, directory or file (default: smollm2)")
    parser.add_argument("--backend", choices=("c", "numba", "jax", "mlx"), default="jax")
    parser.add_argument("--rank", type=int, default=8, help="of the updates (default: 8)")
    parser.add_argument("--alpha", type=float, default=16.0, help="updates count alpha / rank (default: 16)")
    parser.add_argument("--steps", type=int, default=20, help="training steps (default: 20)")
    parser.add_argument("--batch", type=int, default=1, help="pieces of text a step (default: 1)")
    parser.add_argument("--length", type=int, default=256, help="tokens of a piece (default: 256)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: 0.001)")
    parser.add_argument("--tests", type=int, default=8, help="batches to evaluate on (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of factors and batches (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("lora.safetensors"), help="file for the updates")
    return parser.parse_args()


def low_rank_updates(decoder: rope.Decoder, rank: int, seed: int) -> dict[str, LowRank]:
    """Return an update of each query and value projection. It begins as 0: ``a`` is random and ``b`` is 0."""
    rng = np.random.default_rng(seed)
    updates = {}
    for name, weight in decoder.parameters.items():
        if name.rpartition(".")[2] in ADAPTED:
            n_in, n_out = weight.type.shape
            a = rng.normal(0, n_in**-0.5, (n_in, rank)).astype(decoder.dtype)
            b = np.zeros((rank, n_out), decoder.dtype)
            updates[name] = LowRank(
                *(
                    pytensor.shared(value, f"{name}.{side}", shape=value.shape)
                    for side, value in (("a", a), ("b", b))
                )
            )
    return updates


def adapted(graph: Any, decoder: rope.Decoder, updates: dict[str, LowRank], scale: np.float32) -> Any:
    """Return ``graph`` with ``W + scale * a @ b`` in place of each updated W, which itself stays as it is."""
    weights = {name: decoder.parameters[name] for name in updates}
    return graph_replace(
        graph, {w: w + scale * (updates[name].a @ updates[name].b) for name, w in weights.items()}
    )


def fine_tune(step: CompiledFunction, train: npt.NDArray[np.int32], options: argparse.Namespace) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    rng = np.random.default_rng(options.seed)
    times = []
    with Progress(*columns) as bar:
        task = bar.add_task("compiling", total=options.steps)
        for _ in range(options.steps):
            starts = rng.integers(0, len(train) - options.length, options.batch)
            began = perf_counter(), process_time()
            loss = step(pieces(train, starts, options.length))
            times.append((perf_counter() - began[0], process_time() - began[1]))
            bar.update(task, advance=1, description=f"loss {loss:.3f}")
    # The first step compiles.
    wall, processor = np.median(times[1:] or times, axis=0)
    n_token = options.batch * options.length
    print(f"{wall:.2f} s a step, {n_token / wall:,.0f} tokens/s; {processor:.2f} s of processor time")


def mean_loss(evaluate: CompiledFunction, tests: npt.NDArray[np.int32], batch: int) -> float:
    return float(np.mean([evaluate(tests[i : i + batch]) for i in range(0, len(tests), batch)]))


def merge(weights: Weights, factors: Mapping[str, LowRank], scale: np.float32) -> dict[str, npt.NDArray[Any]]:
    """Return the weights with their updates added; those without one are not copied."""
    return {**weights, **{name: weights[name] + scale * (of.a @ of.b) for name, of in factors.items()}}


def value_of(variable: Any) -> npt.NDArray[Any]:
    return np.array(variable.get_value())


def n_value(variables: Any) -> int:
    return sum(int(np.prod(variable.type.shape)) for variable in variables)


def peak_memory() -> int:
    """Return the most memory that the process has held, in bytes."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
