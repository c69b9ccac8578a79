"""
Generate tokens with what export_jax.py wrote. Needs JAX and NumPy, and nothing else.

    python run_exported.py smollm2.stablehlo smollm2.npz 12,80,314 40
"""

import json
import sys
from importlib import import_module

import jax
import numpy as np


def main() -> None:
    artifact, arrays, ids, n_token = sys.argv[1:]
    with open(artifact, "rb") as file:
        exported = jax.export.deserialize(bytearray(file.read()))
    params, state = read(arrays)
    step = jax.jit(exported.call, donate_argnums=2)

    prompt = [int(token) for token in ids.split(",")]
    for token in prompt:
        logits, state = step(params, np.array([[token]], "int32"), state)
    tokens = [int(logits[0].argmax())]
    while len(tokens) < int(n_token):
        logits, state = step(params, np.array([[tokens[-1]]], "int32"), state)
        tokens.append(int(logits[0].argmax()))

    missing = [name for name in ("pytensor", "pytensor_rope") if not can_import(name)]
    print(json.dumps({"tokens": tokens, "missing": missing}))


def read(path: str) -> tuple[dict[str, jax.Array], list]:
    """Return the weights by name and the empty state, as JAX's own arrays."""
    with np.load(path) as file:
        names = [name.removeprefix("params/") for name in file if name.startswith("params/")]
        params = {name: jax.numpy.array(file[f"params/{name}"]) for name in names}
        layers = range(sum(name.startswith("keys/") for name in file))
        state = [[file[f"{of}/{i}"] for i in layers] for of in ("keys", "values")]
        return params, jax.tree.map(jax.numpy.array, [*state, file["length"]])


def can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
