"""
A decoder spread over many devices: its weights by tensor, its rows by data, over a mesh of JAX's.

    python examples/shard_jax.py --model smollm2 --data 2 --devices 8 --processes 2

simulates 8 devices on this machine's CPU, shared among 2 processes that talk over loopback, and compares the
logits of a full pass and of decoding steps with those of one device. On a TPU or GPU pod each host runs this
program once, with --on pod.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor.tensor as pt
from export_jax import load

import pytensor_rope as rope

TOLERANCE = 1e-4  # of the largest logit


def main() -> None:
    options = parse_arguments()
    if options.processes > 1 and options.worker is None:
        start_workers(options)
        return
    if options.on == "simulated":
        here = options.devices // options.processes
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={here}"
        os.environ |= {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}  # read when JAX is first used
    lines = sys.stdout
    if options.worker is not None:
        # JAX's transport tells of its connections on the standard output: let that go where errors go.
        lines = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
    import jax

    if options.worker is not None:
        jax.distributed.initialize(f"127.0.0.1:{options.port}", options.processes, options.worker)
    elif options.on == "pod":
        jax.distributed.initialize()  # where a pod tells each host of the others
    n_model = jax.device_count() // options.data
    auto = (jax.sharding.AxisType.Auto,) * 2  # XLA works out how what is computed is split
    mesh = jax.make_mesh((options.data, n_model), ("data", "model"), axis_types=auto)
    decoder, _, _ = load(options.model, "")
    for line in compare(decoder, mesh, options):
        if jax.process_index() == 0:
            print(line, file=lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="small", help="a name or a checkpoint (default: a small one)")
    parser.add_argument("--devices", type=int, default=8, help="devices to simulate (default: 8)")
    parser.add_argument("--data", type=int, default=2, help="groups of devices that share rows (default: 2)")
    parser.add_argument("--processes", type=int, default=1, help="processes to share them (default: 1)")
    parser.add_argument("--rows", type=int, default=4, help="rows of the batch (default: 4)")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each row (default: 24)")
    parser.add_argument("--sinks", type=int, default=2, help="first tokens to keep (default: 2)")
    parser.add_argument("--window", type=int, default=14, help="last tokens to keep (default: 14)")
    parser.add_argument(
        "--on",
        choices=("simulated", "host", "pod"),
        default="simulated",
        help="devices that this machine's CPU plays, that this machine has, or that all hosts of a pod have",
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds for all processes (default: 600)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(decoder: rope.Decoder, mesh: Any, options: argparse.Namespace) -> Iterator[str]:
    """Run a full pass and decoding steps on the mesh and on one device, and tell how much they differ."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    rng = np.random.default_rng(0)
    ids = rng.integers(0, decoder.config.vocab_size, (options.rows, options.tokens)).astype("int32")
    by_row, on_all = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    shardings = rope.decoder_shardings(decoder, mesh)

    forward, params = full_pass(decoder)
    split = put(params, shardings)
    total = sum(value.nbytes for value in params.values())
    held = sum(value.addressable_shards[0].data.nbytes for value in split.values())
    yield (
        f"{mesh.size} devices in {jax.process_count()} process(es), {mesh.shape['data']} by data and "
        f"{mesh.shape['model']} by tensor: {held / 1e6:.2f} of {total / 1e6:.2f} MB of weights on each"
    )
    on_mesh = jax.jit(forward, out_shardings=on_all).lower(split, put(ids, by_row)).compile()
    sums = on_mesh.as_text().count("all-reduce(")
    logits = on_mesh(split, put(ids, by_row))
    yield report(f"full pass, {sums} all-reduces", logits, jax.jit(forward)(params, ids))

    step, params, state = decoding_step(decoder, rope.SinkCache(options.sinks, options.window), options.rows)
    of_state = list(rope.state_shardings(rope.DecoderState(*state), mesh))
    split_state = put(state, of_state)
    # The state stays where it is, and its memory is used again.
    on_mesh = jax.jit(step, donate_argnums=2, out_shardings=(on_all, of_state))
    on_one = jax.jit(step, donate_argnums=2)
    state = jax.tree.map(jax.numpy.array, state)
    params = jax.device_put(params)
    ours, theirs = [], []
    for token in ids.T[:, :, None]:
        logits, split_state = on_mesh(split, put(token, by_row), split_state)
        ours.append(np.asarray(logits))
        logits, state = on_one(params, token, state)
        theirs.append(np.asarray(logits))
    yield report(f"{options.tokens} decoding steps", np.stack(ours), np.stack(theirs))


def full_pass(decoder: rope.Decoder) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    ids = pt.tensor("token_ids", shape=(None, None), dtype="int32")
    return rope.to_jax([ids], decoder(ids))


def decoding_step(
    decoder: rope.Decoder, cache: rope.SinkCache, rows: int
) -> tuple[Callable[..., Any], dict[str, np.ndarray], Any]:
    """Return the step, its parameters and the empty state, as lists of arrays."""
    empty = decoder.initial_state(cache, rows)
    token = pt.tensor("token", shape=(rows, 1), dtype="int32")
    state = rope.DecoderState(
        keys=[pt.as_tensor(keys).type() for keys in empty.keys],
        values=[pt.as_tensor(values).type() for values in empty.values],
        length=pt.as_tensor(empty.length).type(),
    )
    hidden, new_state = decoder.attend(token, state, cache)
    step, params = rope.to_jax([token, list(state)], (decoder.logits(hidden[:, 0]), list(new_state)))
    return step, params, list(empty)


def put(tree: Any, shardings: Any) -> Any:
    """Put arrays on a mesh: each process takes from its own copy what its devices hold."""
    import jax

    def put_one(value: np.ndarray, sharding: Any) -> Any:
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(put_one, tree, shardings)


def report(name: str, ours: Any, theirs: Any) -> str:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    difference, largest = np.abs(ours - theirs).max(), np.abs(theirs).max()
    line = f"{name}: logits up to {largest:.3f}, largest difference {difference:.1e}"
    if not difference <= TOLERANCE * largest:
        raise SystemExit(f"{line}: they are not those of one device.")
    return line


def start_workers(options: argparse.Namespace) -> None:
    """Run this program once for each process, on a free port, and leave none behind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *sys.argv[1:], "--port", str(port), "--worker"]
    workers = [subprocess.Popen([*command, str(i)]) for i in range(options.processes)]
    try:
        deadline = time.monotonic() + options.timeout
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() for worker in workers):
                break  # the others would wait for it
            if time.monotonic() > deadline:
                raise SystemExit(f"The processes took longer than {options.timeout} s.")
            time.sleep(0.1)
    finally:
        for worker in workers:
            worker.kill()
        codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit(f"The processes ended with {codes}.")


if __name__ == "__main__":
    main()
