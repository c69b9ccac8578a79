"""
A decoder's step as an artifact of jax.export, run by a process that has no PyTensor.

    python examples/export_jax.py --model smollm2 --prompt "Gravity is" --tokens 100 --window 60

writes smollm2.stablehlo, the step for CPU, CUDA and TPU, and smollm2.npz, the weights and the empty state.
run_exported.py then reads both in a process in which PyTensor and this package can't be imported, and writes
the same tokens as a stream does here.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope
from pytensor_rope.checkpoints import load_checkpoint

PLATFORMS = ("cpu", "cuda", "tpu")
SMALL = rope.DecoderConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=160,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    head_dim=16,
    context_length=128,
)
# Isolated, so that no path of ours is searched; and should they be installed, they can't be imported.
WITHOUT_PYTENSOR = """
import runpy, sys
sys.modules["pytensor"] = sys.modules["pytensor_rope"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> None:
    options = parse_arguments()
    decoder, prompt, decode = load(options.model, options.prompt)
    cache = rope.SinkCache(options.sinks, options.window)

    artifact, arrays = (options.output.with_suffix(end) for end in (".stablehlo", ".npz"))
    write(decoder, cache, artifact, arrays)
    for path in (artifact, arrays):
        print(f"{path}: {path.stat().st_size / 1e6:,.2f} MB")

    report = run_without_pytensor(artifact, arrays, prompt, options.tokens)
    print(f"run in a process that can't import {' or '.join(report['missing'])}:")
    stream = rope.Stream(decoder, cache, backend="jax")
    expected = list(stream.generate(prompt, options.tokens))
    print(decode(report["tokens"]))
    if report["tokens"] != expected:
        raise SystemExit(f"A stream writes other tokens:\n{decode(expected)}")
    print(f"{len(expected)} tokens, the same as a stream's")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="small", help="a name or a checkpoint (default: a small one)")
    parser.add_argument(
        "--prompt", default="Gravity is", help='the text to go on from (default: "Gravity is")'
    )
    parser.add_argument("--tokens", type=int, default=40, help="tokens to write (default: 40)")
    parser.add_argument("--sinks", type=int, default=4, help="first tokens to keep (default: 4)")
    parser.add_argument("--window", type=int, default=20, help="last tokens to keep (default: 20)")
    parser.add_argument("--output", type=Path, help="path of the files, without .stablehlo and .npz")
    options = parser.parse_args()
    if options.output is None:
        options.output = Path(Path(options.model).stem)
    return options


def load(model: str, prompt: str) -> tuple[rope.Decoder, list[int], Any]:
    """Return a decoder, the prompt's token ids, and what makes text of token ids."""
    if model == "small":  # random weights, whose text is bytes
        return small_decoder(), list(prompt.encode()), bytes
    checkpoint = load_checkpoint(model)
    decoder = rope.Decoder(config=checkpoint.config, weights=checkpoint.weights)
    tokenizer = checkpoint.tokenizer
    return decoder, list(tokenizer.encode(prompt)), tokenizer.decode


def small_decoder() -> rope.Decoder:
    """Return a decoder with random weights, larger than usual: what it writes doesn't settle."""
    decoder = rope.Decoder(config=SMALL, seed=0)
    for name, parameter in decoder.parameters.items():
        if not name.endswith("norm"):
            parameter.set_value(parameter.get_value() * 10)
    return decoder


def write(decoder: rope.Decoder, cache: rope.SinkCache, artifact: Path, arrays: Path) -> None:
    """Write the step of a decoder with one row, and what it starts from."""
    import jax

    empty = decoder.initial_state(cache, batch=1)
    token = pt.tensor("token", shape=(1, 1), dtype="int32")
    state = rope.DecoderState(
        keys=[pt.as_tensor(keys).type() for keys in empty.keys],
        values=[pt.as_tensor(values).type() for values in empty.values],
        length=pt.as_tensor(empty.length).type(),
    )
    hidden, new_state = decoder.attend(token, state, cache)
    # Lists: a file of jax.export knows no class of ours.
    step, params = rope.to_jax([token, list(state)], (decoder.logits(hidden[:, 0]), list(new_state)))

    exported = jax.export.export(jax.jit(step), platforms=PLATFORMS)(
        params, np.zeros((1, 1), "int32"), list(empty)
    )
    artifact.write_bytes(exported.serialize())
    layers = range(decoder.config.n_layer)
    np.savez(
        arrays,
        **{f"params/{name}": value for name, value in params.items()},
        **{f"keys/{i}": empty.keys[i] for i in layers},
        **{f"values/{i}": empty.values[i] for i in layers},
        length=empty.length,
    )


def run_without_pytensor(artifact: Path, arrays: Path, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return what run_exported.py tells in a process of its own."""
    script = Path(__file__).with_name("run_exported.py")
    ids = ",".join(map(str, prompt))
    command = [sys.executable, "-I", "-c", WITHOUT_PYTENSOR, script, artifact, arrays, ids, str(tokens)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    report: dict[str, Any] = json.loads(run.stdout)
    return report


if __name__ == "__main__":
    main()
