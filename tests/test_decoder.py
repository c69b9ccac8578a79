"""The decoder's full forward pass, its weights and its configuration."""

import dataclasses
from functools import cache

import decoder_reference
import numpy as np
import pytensor.tensor as pt
import pytest
from conftest import compile_for
from pytensor.gradient import grad

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


@cache
def decoder():
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(1 if name.endswith("norm") else 0, 0.3, shape)
        for name, shape in weight_shapes(CONFIG).items()
    }
    return Decoder(config=CONFIG, weights=weights)


@cache
def compiled(backend):
    """Compile logits, a loss and its gradient for two weights, in float64."""
    model = Decoder(config=CONFIG, weights={name: p.get_value() for name, p in decoder().parameters.items()})
    ids = pt.lmatrix("token_ids")
    logits = model(ids)
    loss = (logits * pt.cos(logits)).sum()
    chosen = [model.parameters[name] for name in ("layers.0.key", "layers.1.attention_norm")]
    return model, chosen, compile_for([ids], [logits, loss, *grad(loss, chosen)], backend)


def test_a_full_pass_gives_the_reference(backend):
    _, _, fn = compiled(backend)
    weights = {name: np.array(p.get_value()) for name, p in decoder().parameters.items()}
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, 9))
    logits = fn(ids)[0]
    # MLX's float64 sine and cosine are float32-accurate.
    tolerance = 1e-5 if backend == "mlx" else 1e-10
    for row in range(2):
        want = decoder_reference.decoder_logits(weights, CONFIG, ids[row], 0, 99)
        np.testing.assert_allclose(logits[row], want, atol=tolerance, rtol=0)


class Alternating(Decoder):
    """Every second layer sees the last three tokens alone."""

    def _window(self, i):
        return 3 if i % 2 else None


def test_a_full_pass_with_a_window_in_some_layers(tracing_backend):
    weights = {name: np.array(p.get_value()) for name, p in decoder().parameters.items()}
    model = Alternating(config=CONFIG, weights=weights)
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 9))
    given = pt.lmatrix("token_ids")
    logits = compile_for([given], model(given), tracing_backend)(ids)
    layers = [(0, 99, "absolute"), (0, 3, "absolute")]
    want = decoder_reference.decoder_logits_by_layer(weights, CONFIG, ids[0], layers)
    tolerance = 1e-5 if tracing_backend == "mlx" else 1e-10
    np.testing.assert_allclose(logits[0], want, atol=tolerance, rtol=0)


def test_gradients_are_the_finite_differences(backend):
    _, chosen, fn = compiled(backend)
    ids = np.random.default_rng(2).integers(0, CONFIG.vocab_size, (1, 5))
    rng = np.random.default_rng(3)
    # MLX's float64 functions are float32-accurate, so small differences drown there.
    step, tolerance = (1e-3, 1e-2) if backend == "mlx" else (1e-5, 1e-6)
    analytic = fn(ids)[2:]
    for parameter, gradient in zip(chosen, analytic, strict=True):
        value = np.array(parameter.get_value())
        direction = rng.standard_normal(value.shape)
        losses = []
        for sign in (1, -1):
            parameter.set_value(value + sign * step * direction)
            losses.append(fn(ids)[1])
        parameter.set_value(value)
        np.testing.assert_allclose(
            (losses[0] - losses[1]) / (2 * step),
            (gradient * direction).sum(),
            rtol=tolerance,
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
