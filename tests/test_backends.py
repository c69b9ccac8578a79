"""Compiling for a backend: structures, shared state, dtypes, and what is refused."""

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import chosen_backends, dtypes_at_run_time, random
from pytensor.gradient import grad

from pytensor_rope import backends, function, rms_norm, rotary_embedding
from pytensor_rope.attention import sink_attention

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["variable", "list", "tuple", "none"])
def test_outputs_come_back_in_the_structure_asked_for(backend, kind):
    x = pt.tensor("x", shape=(None,), dtype="float32")
    a, b = x + 1, x * 2
    asked = {"variable": a, "list": [a, b], "tuple": (a, b), "none": None}[kind]
    got = function([x], asked, backend=backend, on_unused_input="ignore")(np.float32([1, 2]))
    if kind == "none":
        assert got is None or got == []
    elif kind == "variable":
        assert type(got) is np.ndarray
        assert got.tolist() == [2, 3]
    else:
        assert type(got) is list
        assert [value.tolist() for value in got] == [[2, 3], [2, 4]]
        assert all(type(value) is np.ndarray for value in got)


def test_scalars_come_back_as_arrays(backend):
    x = pt.tensor("x", shape=(None,), dtype="float32")
    got = function([x], x.sum(dtype="float32", acc_dtype="float32"), backend=backend)(np.float32([1, 2]))
    assert (type(got), got.shape, got.dtype.name, float(got)) == (np.ndarray, (), "float32", 3.0)


def test_update_of_shared_state(backend):
    state = pytensor.shared(np.zeros(3, "float32"), "state")
    x = pt.tensor("x", shape=(3,), dtype="float32")
    for updates in ([(state, state + x)], {state: state + x}, iter([(state, state + x)])):
        state.set_value(np.zeros(3, "float32"))
        add = function([x], state * 1, backend=backend, updates=updates)
        assert add(np.float32([1, 2, 3])).tolist() == [0, 0, 0]
        assert add(np.float32([1, 2, 3])).tolist() == [1, 2, 3]
        assert np.asarray(state.get_value()).tolist() == [2, 4, 6]


def test_updates_without_outputs(backend):
    count = pytensor.shared(np.int64(0), "count")
    up = function([], None, backend=backend, updates={count: count + 1})
    for _ in range(3):
        up()
    assert int(count.get_value()) == 3
    assert count.get_value().dtype.name == "int64" if backend != "mlx" else True


def test_output_is_not_overwritten_by_the_next_update(backend):
    state = pytensor.shared(np.zeros((64, 64), "float32"), "state")
    step = function([], state, backend=backend, updates={state: pt.set_subtensor(state[0], state[0] + 1)})
    first = step()
    step()
    assert first.max() == 0
    assert np.asarray(state.get_value())[0].tolist() == [2] * 64


def test_value_set_later_is_used(backend):
    weight = pytensor.shared(np.ones(2, "float32"), "weight")
    x = pt.tensor("x", shape=(2,), dtype="float32")
    scale = function([x], x * weight, backend=backend)
    assert scale(np.float32([1, 2])).tolist() == [1, 2]
    weight.set_value(np.float32([3, 4]))
    assert scale(np.float32([1, 2])).tolist() == [3, 8]


def test_weights_are_converted_once(backend):
    value = np.ones(2, "float32")
    weight = pytensor.shared(value, "weight")
    scale = function([], weight * 2, backend=backend)
    scale()
    first = weight.container.storage[0]
    scale()
    assert weight.container.storage[0] is first
    assert (type(first) is np.ndarray) == (backend in ("c", "numba"))
    assert value.tolist() == [1, 1]


def test_one_shared_variable_serves_several_backends(request):
    state = pytensor.shared(np.zeros(2, "float32"), "state")
    names = chosen_backends(request.config)
    steps = [function([], state * 1, backend=name, updates={state: state + 1}) for name in names]
    seen = [step().tolist() for step in [*steps, *steps]]
    assert seen == [[n, n] for n in range(2 * len(names))]


def test_array_given_as_state_is_not_written_to(backend):
    value = np.zeros(3, "float32")
    state = pytensor.shared(value, "state", borrow=True)
    step = function([], None, backend=backend, updates={state: pt.set_subtensor(state[0], 1.0)})
    borrowed = np.asarray(state.get_value())
    step()
    step()
    assert np.asarray(state.get_value()).tolist() == [1, 0, 0]
    assert borrowed.tolist() == [0, 0, 0]


def test_inputs_are_cast_as_pytensor_casts_them(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float32")
    got = function([x], rms_norm(x), backend=backend)([[3.0, -3.0]])
    np.testing.assert_allclose(got, [[1, -1]], rtol=1e-6)


def test_names_of_inputs_are_kept(backend):
    x = pt.tensor("x", shape=(None,), dtype="float32")
    got = function([x], x + 1, backend=backend)(x=np.float32([1]))
    assert got.tolist() == [2]


def test_compiled_function_names_its_backend(backend):
    x = pt.tensor("x", shape=(None,), dtype="float32")
    assert function([x], x + 1, backend=backend).backend == backend


@pytest.mark.parametrize("name", ["torch", "C", "", None, 3])
def test_unknown_backend_is_refused(name):
    with pytest.raises(ValueError, match=f"backend must be one of c, numba, jax, mlx; got {name!r}"):
        function([], [], backend=name)


@pytest.mark.parametrize("name", ["numba", "jax", "mlx"])
def test_backend_that_is_not_installed_names_its_extra(monkeypatch, name):
    monkeypatch.setattr(backends, "find_spec", lambda module: None)
    with pytest.raises(ImportError, match=rf'{name} backend is not installed.*"pytensor-rope\[{name}\]"'):
        function([], [], backend=name)


def test_c_without_a_compiler_is_refused():
    with (
        pytensor.config.change_flags(cxx=""),
        pytest.raises(ImportError, match=r"C\+\+ compiler.*Install g\+\+"),
    ):
        function([], [], backend="c")


def test_mode_is_refused():
    x = pt.tensor("x", shape=(None,), dtype="float32")
    with pytest.raises(TypeError, match="leave mode out"):
        function([x], x + 1, backend="c", mode="FAST_RUN")


def float16_graph():
    x = pt.tensor("x", shape=(None, None), dtype="float16")
    return [x], rms_norm(x)


def test_float16_on_numba_is_refused_with_the_way_out():
    inputs, output = float16_graph()
    with pytest.raises(
        NotImplementedError, match=r"Numba has no float16.*Cast to float32, or .* c, jax or mlx"
    ):
        function(inputs, output, backend="numba")


def test_float16_in_an_update_on_numba_is_refused():
    state = pytensor.shared(np.zeros(2, "float16"))
    with pytest.raises(NotImplementedError, match=r"Numba has no float16"):
        function([], None, backend="numba", updates={state: state * 2})


def test_float16_inside_a_float32_graph_on_numba_is_refused():
    x = pt.tensor("x", shape=(2, 4), dtype="float32")
    inside = rms_norm(x.astype("float16")).astype("float32")
    with pytest.raises(NotImplementedError, match=r"Numba has no float16"):
        function([x], inside, backend="numba")


@pytest.mark.xfail(raises=NotImplementedError, strict=True, reason="Numba has no float16 arrays")
def test_float16_on_numba_works():
    """Flag the day Numba takes float16: then the refusal above can go."""
    inputs, output = float16_graph()
    pytensor.function(inputs, output, mode="NUMBA")(np.ones((1, 4), "float16"))


IN_FLOAT32 = """
import sys
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor_rope import RMSNorm, RotaryEmbedding, SinkCache, SinkCacheState, function

assert pytensor.config.floatX == "float32"
backend = sys.argv[1]
assert RMSNorm(n_in=4).weight.dtype == "float32"


def attend(dtype):
    cache = SinkCache(1, 3)
    initial = cache.initial_state(1, 1, 4, dtype)
    state = SinkCacheState(*(pt.tensor(shape=x.shape, dtype=x.dtype) for x in initial))
    x = pt.tensor("x", shape=(1, 1, 1, 4), dtype=dtype)
    normalized = RMSNorm(n_in=4)(x)
    attended, new = cache.attend(normalized, normalized, x, state, rotary=RotaryEmbedding())
    gradient = pt.grad(normalized.sum(dtype=dtype), x)
    positions = pt.tensor("positions", shape=(1,), dtype="int64")
    rotated = RotaryEmbedding(pairing="adjacent")(x, positions)
    outputs = [rotated, normalized, attended, gradient, new.keys, new.values]
    assert [out.type.dtype for out in outputs] == [dtype] * 6, [out.type.dtype for out in outputs]
    return function([x, positions, *state], outputs, backend=backend), initial


for dtype in sys.argv[2:]:
    compiled, initial = attend(dtype)
    x = np.array([[[[1, 2, 3, 4]]]], dtype)
    outputs = compiled(x, [1], *initial)
    assert [out.dtype.name for out in outputs] == [dtype] * 6, [out.dtype.name for out in outputs]
    c, s = np.cos([1.0, 0.01]), np.sin([1.0, 0.01])
    right = np.array([c[0] - 2 * s[0], 2 * c[0] + s[0], 3 * c[1] - 4 * s[1], 4 * c[1] + 3 * s[1]])
    # MLX computes float64 sines and cosines in float32.
    allowed = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-6 if backend == "mlx" else 1e-14}[dtype]
    assert np.abs(np.float64(outputs[0]).ravel() - right).max() < allowed, outputs[0]
    normalized = x.astype("float64") / np.sqrt(7.5 + 1e-6)
    allowed = {"float16": 2e-3, "float32": 4e-7, "float64": 1e-14}[dtype]
    assert np.abs(np.float64(outputs[1]) - normalized).max() < allowed, outputs[1]
    assert np.abs(np.float64(outputs[2]) - x).max() == 0
print("right")
"""


def test_dtypes_under_float_x_float32(backend, tmp_path):
    dtypes = ["float32", "float64"] + ([] if backend == "numba" else ["float16"])
    flags = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), "floatX=float32"]))
    run = subprocess.run(
        [sys.executable, "-c", IN_FLOAT32, backend, *dtypes],
        env=os.environ | {"PYTENSOR_FLAGS": flags, "PYTHONPATH": python_path()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "right"), run.stderr[-2000:]


def python_path():
    """Return a search path on which a subprocess finds the package that is tested here."""
    here = str(Path(backends.__file__).parents[1])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def test_jax_computes_float64_in_float64_beside_float32(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float64")
    narrow = pt.tensor("narrow", shape=(None, None), dtype="float32")
    outputs = [rms_norm(x), rms_norm(narrow), rotary_embedding(narrow, pt.constant(np.arange(2)))]
    value = random(0, 2, 4)
    wide, *rest = function([x, narrow], outputs, backend=backend)(value, value.astype("float32"))
    expected = value / np.sqrt((value**2).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(wide, expected, rtol=1e-14)
    assert [out.dtype.name for out in rest] == ["float32", "float32"]


def test_a_shared_random_generator_stays_one(backend):
    """Only tensors move to a backend's own arrays."""
    if backend == "mlx":
        pytest.skip("MLX has no random variables in PyTensor")
    generator = pytensor.shared(np.random.default_rng(0))
    x = pt.tensor("x", shape=(3,), dtype="float32")
    draw = pt.random.normal(size=(3,), rng=generator).astype("float32")
    values = function([x], x + draw, backend=backend)(np.zeros(3, "float32"))
    assert values.shape == (3,)
    assert isinstance(generator.get_value(), np.random.Generator)


def test_default_updates_are_updates_too(backend):
    counter = pytensor.shared(np.zeros(2, "float32"))
    counter.default_update = counter + np.float32(1)
    count = function([], counter * np.float32(2), backend=backend)
    assert [count()[0] for _ in range(3)] == [0, 2, 4]


def test_a_shared_variable_serves_one_backend_after_another(backend):
    value = pytensor.shared(np.zeros(3, "float32"))
    for other in (*chosen(backend), backend):
        function([], None, backend=other, updates={value: value + np.float32(1)})()
        np.testing.assert_array_equal(
            function([], value * np.float32(2), backend=other)(), 2 * np.asarray(value.get_value())
        )


def chosen(backend):
    """Return the installed backends beside ``backend``."""
    return [other for other in backends.BACKENDS if other != backend and (other == "c" or find_spec(other))]


def test_gradients_on_jax_keep_the_dtype_of_the_graph():
    pytest.importorskip("jax")
    q, q_sink, k, v = (pt.tensor(dtype="float32", shape=(1, 2, 3, 4)) for _ in range(4))
    cached = [pt.tensor(dtype="float32", shape=(1, 2, 5, 4)) for _ in range(2)]
    positions, slots = (pt.constant(np.array([values], "int32")) for values in ([5, 6, 7], [0, 1, 2, 3, 4]))
    out = sink_attention(q, q_sink, k, v, positions, *cached, slots, sinks=2, window=4)
    inputs = [q, q_sink, k, v, *cached]
    compiled = function(inputs, [q.sum(axis=0), *grad((out**2).sum(), inputs)], backend="jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns where float64 is put among float32
        found = dtypes_at_run_time(compiled, *(random(0, *x.type.shape, dtype="float32") for x in inputs))
    assert set(found) == {"float32"}
