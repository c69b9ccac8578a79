"""The decoder's full forward pass, its weights and its configuration."""

import dataclasses
from functools import cache

import decoder_reference
import numpy as np
import pytensor.tensor as pt
import pytest
from conftest import compile_for
from pytensor.gradient import grad
from pytensor.tensor.special import log_softmax

from pytensor_rope import Decoder, DecoderConfig, DecoderState, SinkCache
from pytensor_rope.weights import weight_shapes

CONFIG = DecoderConfig(
    vocab_size=37,
    hidden_size=16,
    intermediate_size=24,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    head_dim=6,
    context_length=64,
    base=500.0,
    tied=True,
    rotary_dim=4,
)


IDS = np.random.default_rng(2).integers(0, CONFIG.vocab_size, (2, 7))

# What the first one does in another way, or leaves out.
OTHER_CONFIG = dataclasses.replace(
    CONFIG,
    n_layer=1,
    tied=False,
    pairing="adjacent",
    norm="layer",
    norm_bias=True,
    residual="parallel",
    shared_norm=True,
    activation="gelu_tanh",
    gated=False,
    qkv_bias=True,
    output_bias=True,
    feed_forward_bias=True,
    head_bias=True,
    qk_norm="head",
    attention_softcap=2.0,
    logit_softcap=5.0,
    embedding_scale=2.0,
    residual_scale=0.5,
    sliding_window=3,
)


def make_decoder(config):
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(1 if name.endswith("norm") else 0, 0.3, shape)
        for name, shape in weight_shapes(config).items()
    }
    return Decoder(config=config, weights=weights)


@cache
def decoder():
    return make_decoder(CONFIG)


@cache
def compiled(backend):
    """Compile logits of the first decoder, and of both in all a loss and its gradients, in float64."""
    models = [make_decoder(config) for config in (CONFIG, OTHER_CONFIG)]
    parameters = [parameter for model in models for parameter in model.parameters.values()]
    ids = pt.lmatrix("token_ids")
    logits = [model(ids) for model in models]
    loss = sum(cross_entropy(of_model[:, :-1], ids[:, 1:]) for of_model in logits)
    return parameters, compile_for([ids], [logits[0], loss, *grad(loss, parameters)], backend)


def cross_entropy(logits, targets):
    is_target = pt.eq(targets[..., None], np.arange(CONFIG.vocab_size))
    return -pt.where(is_target, log_softmax(logits, axis=-1), 0.0).sum(axis=-1).mean()


@cache
def gradients(backend):
    return compiled(backend)[1](IDS)[2:]


def test_a_full_pass_gives_the_reference(backend):
    _, fn = compiled(backend)
    weights = {name: np.array(p.get_value()) for name, p in decoder().parameters.items()}
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, 9))
    logits = fn(ids)[0]
    # MLX's float64 sine and cosine are float32-accurate.
    tolerance = 1e-5 if backend == "mlx" else 1e-10
    for row in range(2):
        want = decoder_reference.decoder_logits(weights, CONFIG, ids[row], 0, 99)
        np.testing.assert_allclose(logits[row], want, atol=tolerance, rtol=0)


def test_a_full_pass_with_a_window_in_some_layers(tracing_backend):
    weights = {name: np.array(p.get_value()) for name, p in decoder().parameters.items()}
    config = dataclasses.replace(CONFIG, sliding_window=3, sliding_layers=(False, True))
    model = Decoder(config=config, weights=weights)
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 9))
    given = pt.lmatrix("token_ids")
    logits = compile_for([given], model(given), tracing_backend)(ids)
    layers = [(0, 99, "absolute"), (0, 3, "absolute")]
    want = decoder_reference.decoder_logits_by_layer(weights, CONFIG, ids[0], layers)
    tolerance = 1e-5 if tracing_backend == "mlx" else 1e-10
    np.testing.assert_allclose(logits[0], want, atol=tolerance, rtol=0)


def test_gradients_are_the_finite_differences(backend):
    parameters, fn = compiled(backend)
    rng = np.random.default_rng(3)
    # MLX's float64 functions are float32-accurate, so small differences drown there.
    step, tolerance = (1e-2, 1e-3) if backend == "mlx" else (1e-5, 1e-8)
    for parameter, gradient in zip(parameters, gradients(backend), strict=True):
        value = np.array(parameter.get_value())
        # Mostly uphill, so that the difference is no small one of large terms.
        direction = np.sign(gradient) * rng.uniform(0.5, 1.5, value.shape) / value.size**0.5
        losses = []
        for sign in (1, -1):
            parameter.set_value(value + sign * step * direction)
            losses.append(fn(IDS)[1])
        parameter.set_value(value)
        difference = (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(
            difference, (gradient * direction).sum(), rtol=tolerance, atol=tolerance, err_msg=parameter.name
        )


@pytest.mark.slow
def test_gradients_are_those_of_another_backend(backend):
    other = "mlx" if backend == "jax" else "jax"
    pytest.importorskip(other)
    tolerance = 1e-5 if "mlx" in (backend, other) else 1e-12
    parameters, _ = compiled(backend)
    for parameter, gradient, of_other in zip(parameters, gradients(backend), gradients(other), strict=True):
        np.testing.assert_allclose(
            gradient, of_other, rtol=0, atol=tolerance * np.abs(of_other).max(), err_msg=parameter.name
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 0}, "n_layer must be at least 1; got 0"),
        ({"n_kv_head": 3}, "n_kv_head must divide n_head"),
        ({"epsilon": 0.0}, "epsilon must be positive and finite; got 0.0"),
        ({"rotary_dim": 3}, "rotary_dim must be even"),
        ({"pairing": "both"}, "pairing must be one of half, adjacent; got 'both'"),
        ({"base": -1.0}, "base must be positive"),
    ],
)
def test_a_wrong_config_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_a_config_of_other_types_is_refused():
    with pytest.raises(TypeError, match=r"hidden_size must be an integer; got 1\.5"):
        dataclasses.replace(CONFIG, hidden_size=1.5)
    with pytest.raises(TypeError, match="epsilon must be a number; got 'small'"):
        dataclasses.replace(CONFIG, epsilon="small")


def test_a_state_of_arrays_is_taken_as_it_is():
    cache = SinkCache(1, 4)
    ids = pt.tensor("token_ids", shape=(1, None), dtype="int64")
    hidden, new = decoder().attend(ids, decoder().initial_state(cache, batch=1), cache)
    assert hidden.type.shape[-1] == CONFIG.hidden_size
    assert [x.type.shape for x in (*new.keys, *new.values)] == [(1, 2, 5, 6)] * 4


def test_a_state_of_another_model_is_refused():
    cache = SinkCache(1, 4)
    state = decoder().initial_state(cache, batch=1)
    variables = DecoderState(
        *([pt.as_tensor(x).type() for x in part] for part in (state.keys, state.values)), pt.ivector()
    )
    ids = pt.imatrix()
    with pytest.raises(ValueError, match="keys of 1 and values of 1 layers, but Decoder has 2"):
        decoder().attend(ids, variables._replace(keys=variables.keys[:1], values=variables.values[:1]), cache)
    with pytest.raises(ValueError, match="must hold float64 in 6 slots"):
        decoder().attend(ids, variables, SinkCache(1, 5))


def test_weights_that_do_not_fit_are_refused():
    weights = {name: np.zeros(shape, "float32") for name, shape in weight_shapes(CONFIG).items()}
    with pytest.raises(ValueError, match=r"missing \['final_norm'\]"):
        Decoder(config=CONFIG, weights={k: v for k, v in weights.items() if k != "final_norm"})
    with pytest.raises(ValueError, match=r"left over \['head'\]"):
        Decoder(config=CONFIG, weights=weights | {"head": np.zeros((16, 37), "float32")})
    with pytest.raises(ValueError, match=r"'layers.0.query' must have shape \(16, 24\); got \(24, 16\)"):
        Decoder(config=CONFIG, weights=weights | {"layers.0.query": np.zeros((24, 16), "float32")})
    with pytest.raises(ValueError, match="one float dtype; got float32, float64"):
        Decoder(config=CONFIG, weights=weights | {"final_norm": np.zeros(16)})
    with pytest.raises(TypeError, match="token_ids must be integers"):
        decoder()(pt.fmatrix())
