"""Layer norm, activations, and what a DecoderConfig refuses."""

import dataclasses
import math

import numpy as np
import pytensor.tensor as pt
import pytest
from conftest import compile_for

from pytensor_rope import Decoder, DecoderConfig
from pytensor_rope.activations import ACTIVATIONS
from pytensor_rope.layer_norm import layer_norm
from pytensor_rope.stream_files import weights_digest
from pytensor_rope.weights import (
    join_projections,
    layer_shapes,
    random_weights,
    separate_projections,
    weight_shapes,
)

CONFIG = DecoderConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    head_dim=8,
    context_length=64,
)
X = np.array([[-30.0, -3.0, -0.7, 0.0], [1e-3, 0.5, 2.0, 30.0], [1000.0, 1001.0, 1002.0, 1003.0]])
WEIGHT, BIAS = np.array([1.5, -0.5, 1.0, 2.0]), np.array([0.1, 0.2, -0.3, 0.0])


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


REFERENCE = {
    "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
    "gelu": gelu,
    # The approximation is within 5e-4 of the exact function, and this is what it says.
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
}


def normalized(row):
    mean = math.fsum(row) / len(row)
    variance = math.fsum((value - mean) ** 2 for value in row) / len(row)
    return [
        (value - mean) / math.sqrt(variance + 1e-3) * w + b
        for value, w, b in zip(row, WEIGHT, BIAS, strict=True)
    ]


def test_layer_norm_and_activations_give_their_definitions(backend):
    dtypes = ["float32"] if backend == "numba" else ["float32", "float16"]
    variables, outputs = [], []
    for dtype in dtypes:
        x, w, b = (pt.tensor(dtype=dtype, shape=shape) for shape in ((None, 4), (4,), (4,)))
        variables += [x, w, b]
        outputs += [layer_norm(x, w, b, epsilon=1e-3)]
        outputs += [activation(x) for activation in ACTIVATIONS.values()]
    values = [array.astype(dtype) for dtype in dtypes for array in (X, WEIGHT, BIAS)]
    results = compile_for(variables, outputs, backend)(*values)
    assert set(REFERENCE) == set(ACTIVATIONS)
    want = [[normalized(row) for row in X.tolist()]]
    want += [np.vectorize(REFERENCE[name])(X) for name in ACTIVATIONS]
    for i, got in enumerate(results):
        dtype = dtypes[i // len(want)]
        assert got.dtype == dtype
        tolerance = {"float32": 2e-6, "float16": 4e-3}[dtype]
        np.testing.assert_allclose(got, want[i % len(want)], rtol=tolerance, atol=tolerance)


def test_the_two_gelus_differ():
    worst = max(abs(REFERENCE["gelu"](x) - REFERENCE["gelu_tanh"](x)) for x in np.linspace(-4, 4, 801))
    assert 1e-4 < worst < 1e-3


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"norm": "batch"}, ValueError, "norm must be one of rms, layer"),
        ({"norm_placement": "between"}, ValueError, "norm_placement"),
        ({"residual": "none"}, ValueError, "residual"),
        ({"activation": "swish"}, ValueError, "activation"),
        ({"qk_norm": "all"}, ValueError, "qk_norm"),
        ({"gated": 1}, TypeError, "gated must be True or False"),
        ({"tied": None}, TypeError, "tied"),
        ({"unit_offset": True, "norm": "layer"}, ValueError, "unit_offset needs"),
        ({"shared_norm": True}, ValueError, "shared_norm needs"),
        ({"residual": "parallel", "norm_placement": "both"}, ValueError, "norm_placement"),
        ({"attention_scale": 0.0}, ValueError, "attention_scale"),
        ({"attention_softcap": -1.0}, ValueError, "attention_softcap"),
        ({"logit_softcap": float("inf")}, ValueError, "logit_softcap"),
        ({"embedding_scale": 0}, ValueError, "embedding_scale"),
        ({"residual_scale": "1"}, TypeError, "residual_scale"),
        ({"logit_scale": float("nan")}, ValueError, "logit_scale"),
        ({"sliding_window": 0}, ValueError, "sliding_window"),
        ({"sliding_window": 4, "sliding_layers": (True,)}, ValueError, "each of 2 layers"),
        ({"sliding_window": 4, "sliding_layers": (1, 0)}, TypeError, r"sliding_layers\[0\]"),
        ({"sliding_layers": (True, True)}, ValueError, "without sliding_window"),
        ({"sliding_base": 100.0}, ValueError, "without sliding_window"),
        ({"sliding_window": 4, "sliding_base": -1.0}, ValueError, "base"),
        ({"sliding_window": 4, "sliding_scaling": "yarn?"}, ValueError, "scaling"),
        ({"rotated_layers": 3}, ValueError, "each of 2 layers"),
    ],
)
def test_wrong_values_are_refused_by_name(change, error, words):
    with pytest.raises(error, match=words):
        dataclasses.replace(CONFIG, **change)


def test_each_layer_has_its_own_window_and_rotation():
    config = dataclasses.replace(
        CONFIG,
        n_layer=3,
        sliding_window=5,
        sliding_layers=[True, False, True],
        rotated_layers=[True, True, False],
        sliding_base=500.0,
    )
    assert [config.window(i) for i in range(3)] == [5, None, 5]
    assert [config.rotary(i) and config.rotary(i).base for i in range(3)] == [500.0, 10_000.0, None]
    assert hash(config) == hash(dataclasses.replace(config))


def test_a_billion_layers_of_one_kind_are_no_work():
    assert dataclasses.replace(CONFIG, n_layer=10**12, sliding_window=4).n_layer == 10**12


def test_the_weights_follow_from_the_options():
    config = dataclasses.replace(
        CONFIG,
        norm="layer",
        norm_bias=True,
        residual="parallel",
        shared_norm=True,
        gated=False,
        qkv_bias=True,
        feed_forward_bias=True,
        qk_norm="heads",
        tied=True,
        head_bias=True,
    )
    shapes = layer_shapes(config)
    assert "feed_forward_norm" not in shapes and "gate" not in shapes and "output_bias" not in shapes
    assert shapes["key_bias"] == (16,) and shapes["down_bias"] == (24,) and shapes["up_bias"] == (40,)
    assert (shapes["query_norm"], shapes["key_norm"]) == ((4, 8), (2, 8))
    assert weight_shapes(config)["head_bias"] == (61,) and "head" not in weight_shapes(config)
    after = layer_shapes(dataclasses.replace(CONFIG, norm_placement="after", qk_norm="width"))
    assert "attention_norm" not in after and after["feed_forward_output_norm"] == (24,)
    assert (after["query_norm"], after["key_norm"]) == ((32,), (16,))


def test_random_norms_scale_by_1():
    offset = random_weights(dataclasses.replace(CONFIG, unit_offset=True), 0)
    plain = random_weights(dataclasses.replace(CONFIG, norm_bias=True), 0)
    assert not offset["layers.0.attention_norm"].any() and (plain["final_norm"] == 1).all()
    assert not plain["final_norm_bias"].any() and plain["layers.1.query"].std() > 0


@pytest.mark.parametrize("options", [{}, {"qkv_bias": True, "feed_forward_bias": True}, {"gated": False}])
def test_joined_projections_are_the_same_decoder(options):
    config = dataclasses.replace(CONFIG, **options)
    rng = np.random.default_rng(0)
    separate = {
        name: rng.standard_normal(shape).astype("float32") for name, shape in weight_shapes(config).items()
    }
    joined = dict(separate)
    join_projections(joined, config)
    assert {name: weight.shape for name, weight in joined.items()} == weight_shapes(config, joined=True)
    assert not {"layers.0.query", "layers.0.gate", "layers.0.key_bias"} & joined.keys()

    again = separate_projections(joined, config)
    assert again.keys() == separate.keys()
    for name, weight in separate.items():
        np.testing.assert_array_equal(again[name], weight, err_msg=name)

    ids = pt.tensor("ids", shape=(1, 3), dtype="int32")
    decoders = [Decoder(config=config, weights=weights) for weights in (separate, joined)]
    read = compile_for([ids], [decoder(ids) for decoder in decoders], "jax")
    apart, together = read(np.array([[1, 2, 3]], "int32"))
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-4 * np.abs(apart).max())
    assert weights_digest(decoders[0]) == weights_digest(decoders[1])


def test_half_joined_projections_are_refused():
    weights = random_weights(CONFIG, 0)
    whole = dict(weights)
    join_projections(weights, CONFIG)
    weights["layers.1.query"] = whole["layers.1.query"]
    with pytest.raises(ValueError, match=r"left over .*layers\.1\.query"):
        Decoder(config=CONFIG, weights=weights)
