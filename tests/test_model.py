"""Loading a model, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from pytensor_rope import CheckpointError, Model, Stream, load_model

ZOO = Path(__file__).parent / "data" / "zoo"


@pytest.fixture(scope="module")
def model():
    return load_model("smollm2")


def test_a_model_has_a_config_and_a_tokenizer(model):
    assert isinstance(model, Model)
    assert (model.config.n_layer, model.config.n_head, model.config.n_kv_head) == (30, 9, 3)
    assert (model.config.head_dim, model.config.vocab_size, model.config.base) == (64, 49152, 100_000.0)
    assert model.config.tied
    assert model.tokenizer.decode(model.tokenizer.encode("Gravity is")) == "Gravity is"


def test_a_stream_knows_its_cache_before_anything_is_compiled(model):
    stream = model.compile("jax", sinks=4, window=60, headroom=3, positions="absolute", batch=2)
    assert isinstance(stream, Stream)
    assert (stream.position, stream.batch, stream.backend) == (0, 2, "jax")
    assert repr(stream.cache) == "SinkCache(sinks=4, window=60, headroom=3, positions='absolute')"
    # 30 layers of keys and values, 2 rows, 3 heads, 67 slots of 64 float32.
    assert stream.nbytes == 30 * 2 * 2 * 3 * 67 * 64 * 4


def test_each_layer_may_have_its_own_window(model):
    stream = model.compile("jax", sinks=1, window=[7] * 29 + [15])
    assert stream.nbytes == (29 * 8 + 16) * 2 * 3 * 64 * 4
    with pytest.raises(ValueError, match="one for each of 30 layers; got 2"):
        model.compile("jax", window=[7, 15])


def test_a_model_survives_an_interrupted_compilation(monkeypatch):
    small = load_model(ZOO / "llama_default")

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pytensor_rope.model.Decoder", interrupt)
        with pytest.raises(KeyboardInterrupt):
            small.compile("jax")
    assert small.compile("jax").step(1).shape == (1, small.config.vocab_size)


def test_backends_hand_the_weights_to_one_another():
    small, ids = load_model(ZOO / "llama_default"), [[1, 2, 3]]
    first = small.logits(ids, "jax")
    np.testing.assert_allclose(small.logits(ids, "mlx"), first, atol=1e-4)
    np.testing.assert_array_equal(small.logits(ids, "jax"), first)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"sinks": -1}, ValueError, "sinks must be at least 0; got -1"),
        ({"window": 0}, ValueError, "window must be at least 1; got 0"),
        ({"headroom": -1}, ValueError, "headroom must be at least 0; got -1"),
        ({"positions": "relative"}, ValueError, "positions must be one of cache, .*; got 'relative'"),
        ({"batch": 0}, ValueError, "batch must be at least 1; got 0"),
        ({"window": 2.5}, TypeError, "window must be an integer; got 2.5"),
    ],
)
def test_wrong_settings_of_a_stream_are_refused(model, settings, error, message):
    with pytest.raises(error, match=message):
        model.compile("numba", **settings)


def test_an_unknown_backend_is_refused(model):
    message = "backend must be one of c, numba, jax, mlx; got 'torch'"
    with pytest.raises(ValueError, match=message):
        model.compile("torch")
    with pytest.raises(ValueError, match=message):
        model.logits([[1]], backend="torch")


def test_wrong_token_ids_are_refused(model):
    for ids, error, message in (
        ([[49152]], ValueError, "from 0 to 49151, the vocabulary; got 49152"),
        ([[-1]], ValueError, "got -1"),
        ([[]], ValueError, "token_ids is empty"),
        ([1, 2], ValueError, r"shape \(batch, seq\); got \(2,\)"),
        ([[1.0]], TypeError, "must be integers; got float64"),
    ):
        with pytest.raises(error, match=message):
            model.logits(ids, backend="jax")


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="nothing-here"):
        load_model(tmp_path / "nothing-here.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "text.gguf")


def test_rows_and_positions_of_a_stream_stay_its_own(model):
    first = model.compile("jax", sinks=1, window=8)
    second = model.compile("jax", sinks=1, window=8)
    assert first.decoder is second.decoder
    before = [np.asarray(keys.get_value()).copy() for keys in second._state.keys]
    first.prefill([1, 2, 3])
    after = [np.asarray(keys.get_value()) for keys in second._state.keys]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert (first.position, second.position) == (3, 0)
