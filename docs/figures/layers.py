"""
Decode token by token by frequencies that follow the length, and compare with one pass at the last length.

    python docs/figures/layers.py
"""

import dataclasses

import numpy as np
import pytensor.tensor as pt

import pytensor_rope as rope
from pytensor_rope.frequencies import DynamicNTK
from pytensor_rope.weights import weight_shapes

N_TOKEN = 24
TRAINED = 8
CONFIG = rope.DecoderConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    n_layer=1,
    n_head=4,
    n_kv_head=2,
    head_dim=8,
    context_length=TRAINED,
    scaling=DynamicNTK(factor=2.0, original_max_position_embeddings=TRAINED),
)


def main() -> None:
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, N_TOKEN))
    print(f"{N_TOKEN} tokens, {CONFIG.scaling}, random weights, float64, Numba")
    print("| layers | frequencies | largest difference of the last logits |")
    for n_layer in (1, 2):
        for name, scheme in (("follow the length", CONFIG.scaling), ("frozen", CONFIG.scaling.at(N_TOKEN))):
            model = decoder(dataclasses.replace(CONFIG, n_layer=n_layer, scaling=scheme))
            difference = np.abs(one_pass(model, ids) - one_by_one(model, ids)).max()
            print(f"| {n_layer} | {name} | {difference:.0e} |", flush=True)


def decoder(config):
    rng = np.random.default_rng(0)
    shapes = weight_shapes(config).items()
    weights = {name: rng.normal(name.endswith("norm"), 0.3, shape) for name, shape in shapes}
    return rope.Decoder(config=config, weights=weights)


def one_pass(model, ids):
    token_ids = pt.lmatrix("token_ids")
    return rope.function([token_ids], model(token_ids), backend="numba")(ids)[0, -1]


def one_by_one(model, ids):
    cache = rope.SinkCache(sinks=0, window=N_TOKEN)
    token_ids = pt.lmatrix("token_ids")
    empty = model.initial_state(cache, batch=1)
    held = [*empty.keys, *empty.values, empty.length]
    inputs = [pt.as_tensor(x).type() for x in held]
    n = model.config.n_layer
    state = rope.DecoderState(keys=inputs[:n], values=inputs[n : 2 * n], length=inputs[-1])
    hidden, state = model.attend(token_ids, state, cache)
    outputs = [model.logits(hidden), *state.keys, *state.values, state.length]
    step = rope.function([token_ids, *inputs], outputs, backend="numba")
    for i in range(ids.shape[1]):
        logits, *held = step(ids[:, i : i + 1], *held)
    return logits[0, -1]


if __name__ == "__main__":
    main()
