"""Ops, layers, caches, functions and streams, pickled and copied, here and in another process."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import compile_for
from small_decoder import CONFIG, fresh, prompt

import pytensor_rope
from pytensor_rope import (
    Decoder,
    RMSNorm,
    RotaryEmbedding,
    SinkCache,
    Stream,
    function,
    load_graph,
    save_graph,
)
from pytensor_rope.stream_state import StreamState


def cloudpickled(value):
    return pickle.loads(pytest.importorskip("cloudpickle").dumps(value))


DUPLICATES = {
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "cloudpickle": cloudpickled,
    "deepcopy": copy.deepcopy,
}


@pytest.fixture(params=DUPLICATES)
def duplicate(request):
    return DUPLICATES[request.param]


@pytest.fixture(scope="session")
def decoder_run(backend):
    """Return a decoder whose weights are on the backend, its head compiled, and what that gives."""
    decoder = Decoder(config=CONFIG, seed=1)
    hidden = pt.tensor("hidden", shape=(None, 24), dtype="float32")
    compiled = compile_for([hidden], decoder.logits(hidden), backend)
    return decoder, compiled, compiled(HIDDEN)


HIDDEN = np.random.default_rng(0).standard_normal((3, 24)).astype("float32")


def test_a_decoder_and_its_graph_stay_together(decoder_run, duplicate):
    decoder, _, _ = decoder_run
    ids = pt.tensor("ids", shape=(1, 5), dtype="int32")
    twin, graph = duplicate((decoder, decoder(ids)))
    embedding = twin.parameters["embedding"]
    assert embedding is not decoder.parameters["embedding"]
    assert embedding in pytensor.graph.traversal.graph_inputs([graph])
    for name, parameter in twin.parameters.items():
        np.testing.assert_array_equal(parameter.get_value(), decoder.parameters[name].get_value())
    embedding.set_value(np.zeros_like(np.asarray(embedding.get_value())))
    assert np.asarray(decoder.parameters["embedding"].get_value()).any()


def test_a_compiled_head_gives_the_same(decoder_run, duplicate):
    _, compiled, want = decoder_run
    twin = duplicate(compiled)
    assert twin.backend == compiled.backend
    np.testing.assert_array_equal(twin(HIDDEN), want)
    np.testing.assert_array_equal(compiled(HIDDEN), want)


def test_a_compiled_function_keeps_its_state_to_itself(backend, duplicate):
    x = pt.scalar("x", dtype="float32")
    total = pytensor.shared(np.float32(0), "total")
    add = function([x], total + x, backend=backend, updates={total: total + x})
    add(np.float32(1))
    twin = duplicate(add)
    assert [float(add(np.float32(2))), float(add(np.float32(0)))] == [3, 3]
    assert [float(twin(np.float32(5))), float(twin(np.float32(0)))] == [6, 6]


def test_a_stream_goes_on_from_where_it_was(backend, duplicate):
    stream = fresh(backend)
    for token in prompt()[:12]:  # steps alone: reading chunks would be compiled too
        stream.step(token)
    twin = duplicate(stream)
    assert (twin.position, twin.backend, twin.cache) == (12, backend, stream.cache)
    want = [stream.step(token) for token in prompt()[12:20]]
    assert (twin.position, stream.position) == (12, 20)
    np.testing.assert_array_equal([twin.step(token) for token in prompt()[12:20]], want)


def test_a_stream_that_has_compiled_nothing_pickles_small():
    stream = Stream(Decoder(config=CONFIG, seed=0), SinkCache(2, 8, headroom=2), backend="c", batch=2)
    weights = sum(p.get_value().nbytes for p in stream.decoder.parameters.values())
    assert len(pickle.dumps(stream)) < weights + stream.nbytes + 20_000


def test_a_copy_of_a_stream_is_a_fork(backend):
    stream = fresh(backend)
    stream.step(1)
    twin = copy.copy(stream)
    twin.step(2)
    assert (stream.position, twin.position) == (1, 2)
    assert twin.decoder is stream.decoder


def test_forks_pickled_together_become_streams_of_their_own():
    stream = Stream(Decoder(config=CONFIG, seed=0), SinkCache(2, 8), backend="c")
    one, two = pickle.loads(pickle.dumps((stream, stream.fork())))
    assert one.decoder is two.decoder
    assert one._own_state._turn is not two._own_state._turn
    assert isinstance(one._own_state, StreamState)


@pytest.mark.parametrize(
    "make", [lambda: RMSNorm("n", n_in=4), lambda: RotaryEmbedding(head_dim=8), lambda: SinkCache(1, 3, 2)]
)
def test_a_layer_or_a_cache_is_the_same(make, duplicate):
    layer = make()
    twin = duplicate(layer)
    assert type(twin) is type(layer)
    assert repr(twin) == repr(layer) or twin.__dict__.keys() == layer.__dict__.keys()


LOAD = """
import pickle, sys
import numpy as np
with open("stream.pickle", "rb") as file:
    stream = pickle.load(file)
np.save("got.npy", [stream.step(token) for token in (1, 2, 3)])
"""


def test_a_model_goes_on_in_another_process(tmp_path, backend):
    stream = fresh(backend)
    for token in prompt()[:12]:  # steps alone: reading chunks would be compiled too
        stream.step(token)
    (tmp_path / "stream.pickle").write_bytes(pickle.dumps(stream))
    want = [stream.step(token) for token in (1, 2, 3)]
    root = str(Path(pytensor_rope.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "got.npy"), want, atol=1e-5, rtol=0)


def test_weights_on_a_device_are_saved_to_graph_files(decoder_run, tmp_path):
    pytest.importorskip("pytensor_ml")
    decoder, _, _ = decoder_run
    ids = pt.tensor("ids", shape=(1, 5), dtype="int32")
    save_graph(tmp_path / "a", [ids], decoder(ids))
    inputs = pytensor.graph.traversal.graph_inputs(load_graph(tmp_path / "a")[1])
    (embedding,) = (v for v in inputs if v.name == "Decoder.embedding")
    np.testing.assert_array_equal(embedding.get_value(), decoder.parameters["embedding"].get_value())
