"""Pure functions of JAX's and MLX's arrays, against NumPy, PyTensor's own gradients and a stream."""

import dataclasses
import importlib
import os
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from small_decoder import CONFIG, WINDOW, decoder_for, prompt, reference_logits, weights

from pytensor_rope import (
    Decoder,
    DecoderState,
    SinkCache,
    decoder_shardings,
    rms_norm,
    state_shardings,
    to_jax,
    to_mlx,
)
from pytensor_rope.weights import join_projections, weight_shapes

CACHE = SinkCache(2, WINDOW)
CONVERSIONS = {"jax": to_jax, "mlx": to_mlx}
# A process that has only the backend.
ALONE = 'import sys\nsys.modules["pytensor"] = sys.modules["pytensor_rope"] = None\n'


def arrays_of(backend):
    """Return the namespace that arrays are made with."""
    return importlib.import_module({"jax": "jax.numpy", "mlx": "mlx.core"}[backend])


def compiled_by(backend):
    return {"jax": lambda: importlib.import_module("jax").jit, "mlx": lambda: arrays_of("mlx").compile}[
        backend
    ]()


def gradient_by(backend):
    module = importlib.import_module({"jax": "jax", "mlx": "mlx.core"}[backend])
    return module.grad


def x64_for(backend):
    """Return a scope in which the backend has 64-bit numbers."""
    return importlib.import_module("jax").enable_x64(True) if backend == "jax" else nullcontext()


def on(backend, values):
    """Return NumPy arrays, nested in lists or tuples, as the backend's own."""
    if isinstance(values, list | tuple):
        return [on(backend, value) for value in values]
    return arrays_of(backend).array(values)


def run_alone(code, *arguments):
    """Run code in a process that can import neither PyTensor nor this package, and return what it prints."""
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def state_variables(state):
    return DecoderState(
        keys=[pt.as_tensor(keys).type() for keys in state.keys],
        values=[pt.as_tensor(values).type() for values in state.values],
        length=pt.as_tensor(state.length).type(),
    )


@cache
def decoding_step(backend):
    """Return the step of the small decoder, its parameters and the empty state as NumPy arrays."""
    decoder = decoder_for("functional")
    empty = decoder.initial_state(CACHE, batch=1)
    token, state = pt.tensor("token", shape=(1, 1), dtype="int32"), state_variables(empty)
    hidden, new_state = decoder.attend(token, state, CACHE)
    step, params = CONVERSIONS[backend]([token, list(state)], [decoder.logits(hidden[:, 0]), list(new_state)])
    return step, params, list(empty)


def tokens_of(text):
    return [np.array([[token]], "int32") for token in text]


@cache
def loss_of_tokens():
    """Return the token ids, what one layer of the small decoder loses on them, and its weights."""
    config = dataclasses.replace(CONFIG, n_layer=1)
    decoder = Decoder(config=config, weights={name: weights()[name] for name in weight_shapes(config)})
    ids = pt.tensor("token_ids", shape=(1, 6), dtype="int32")
    logits = decoder(ids)[0, :-1]
    chosen = pt.log(pt.special.softmax(logits, axis=-1))[np.arange(5, dtype="int32"), ids[0, 1:]]
    return ids, -chosen.sum(acc_dtype="float32", dtype="float32"), decoder.parameters


def values_of_tokens():
    return prompt(6).astype("int32")[None]


def test_a_decoding_step_is_the_stream_s(tracing_backend):
    step, params, state = decoding_step(tracing_backend)
    step, state = compiled_by(tracing_backend)(step), on(tracing_backend, state)
    for i, token in enumerate(tokens_of(prompt())):
        logits, state = step(params, on(tracing_backend, token), state)
        np.testing.assert_allclose(np.array(logits)[0], reference_logits(2)[i], rtol=0, atol=2e-4)
    assert np.array(state[2]).tolist() == [len(prompt())]


def test_gradients_are_pytensor_s(tracing_backend):
    backend = tracing_backend
    ids, loss, parameters = loss_of_tokens()
    fn, params = CONVERSIONS[backend]([ids], loss)
    values = on(backend, values_of_tokens())
    gradients = compiled_by(backend)(gradient_by(backend)(fn))(params, values)
    assert {p.name for p in parameters.values()} == gradients.keys() == params.keys()

    names = ("embedding", "layers.0.query", "layers.0.down", "layers.0.attention_norm", "head")
    wrt = [parameters[name] for name in names]
    by_pytensor, params = CONVERSIONS[backend]([ids], pt.grad(loss, wrt))
    with x64_for(backend):  # there is float64 in what PyTensor generates
        expected = [np.array(x) for x in compiled_by(backend)(by_pytensor)(params, values)]
    for parameter, gradient in zip(wrt, expected, strict=True):
        got, largest = np.array(gradients[parameter.name]), np.abs(gradient).max()
        assert largest > 1e-3
        np.testing.assert_allclose(got, gradient, rtol=0, atol=3e-5 * largest)


def test_vmap_over_inputs_and_over_parameters(tracing_backend):
    x = pt.matrix("x", dtype="float32")
    y = rms_norm(x, shared("scale", np.ones(4))) @ shared("matrix", np.eye(4))
    fn, params = CONVERSIONS[tracing_backend]([x], y)
    vmap = importlib.import_module({"jax": "jax", "mlx": "mlx.core"}[tracing_backend]).vmap
    xs = np.random.default_rng(0).standard_normal((3, 2, 4)).astype("float32")
    expected = xs / np.sqrt((xs**2).mean(-1, keepdims=True) + 1e-6)

    over_inputs = vmap(fn, in_axes=(None, 0))(params, on(tracing_backend, xs))
    np.testing.assert_allclose(np.array(over_inputs), expected, rtol=1e-5)

    scales = np.array([[1.0], [2.0], [-3.0]], "float32") * np.ones(4, "float32")
    matrices = np.broadcast_to(np.eye(4, dtype="float32"), (3, 4, 4))
    stacked = {"scale": on(tracing_backend, scales), "matrix": on(tracing_backend, matrices)}
    axes = dict.fromkeys(stacked, 0) if tracing_backend == "jax" else 0
    over_parameters = vmap(fn, in_axes=(axes, None))(stacked, on(tracing_backend, xs[0]))
    np.testing.assert_allclose(np.array(over_parameters), expected[0] * scales[:, None], rtol=1e-5)


def test_checkpointing_changes_no_gradient():
    jax = pytest.importorskip("jax")
    ids, loss, _ = loss_of_tokens()
    fn, params = to_jax([ids], loss)
    plain = jax.jit(jax.grad(fn))(params, values_of_tokens())
    again = jax.jit(jax.grad(jax.checkpoint(fn)))(params, values_of_tokens())
    for name, gradient in plain.items():
        largest = np.abs(gradient).max() + 1e-7
        np.testing.assert_allclose(again[name], gradient, rtol=0, atol=3e-5 * largest)


def test_a_donated_state_is_deleted_and_nothing_else():
    jax = pytest.importorskip("jax")
    step, params, state = decoding_step("jax")
    params, state = jax.device_put(params), on("jax", state)
    logits, new_state = jax.jit(step, donate_argnums=2)(params, tokens_of([1])[0], state)
    assert all(array.is_deleted() for array in jax.tree.leaves(state))
    assert not any(array.is_deleted() for array in jax.tree.leaves([params, logits, new_state]))

    kept = on("jax", decoding_step("jax")[2])
    jax.jit(step)(params, tokens_of([1])[0], kept)
    assert not any(array.is_deleted() for array in jax.tree.leaves(kept))


def test_parameters_are_numpy_s_own_and_not_copied():
    pytest.importorskip("jax")
    weight = pytensor.shared(np.ones(4, "float32"), name="weight", borrow=True)
    fn, params = to_jax([], weight * np.float32(2))
    assert type(params["weight"]) is np.ndarray
    assert np.shares_memory(params["weight"], weight.get_value(borrow=True))
    weight.set_value(np.zeros(4, "float32"))
    assert fn({"weight": np.full(4, 3, "float32")}).tolist() == [6, 6, 6, 6]


def test_nested_inputs_and_outputs(tracing_backend):
    x, y, z = (pt.vector(name, dtype="float32") for name in "xyz")
    fn, params = CONVERSIONS[tracing_backend]([{"x": x, "y": y}, z], {"sums": (x + y, [y + z]), "x": x})
    one, two, three = (on(tracing_backend, np.array([n], "float32")) for n in (1, 2, 3))
    out = fn(params, {"y": two, "x": one}, three)
    assert out["sums"][0].tolist() == [3]
    assert out["sums"][1][0].tolist() == [5]
    assert out["x"].tolist() == [1]
    assert type(out["sums"]) is tuple
    with pytest.raises(ValueError, match=r"inputs\[0\] must be a dict of x, y; got a dict of x\."):
        fn(params, {"x": one}, three)
    nested, _ = CONVERSIONS[tracing_backend]([[x, y]], x - y)
    with pytest.raises(
        ValueError, match=r"inputs\[0\] must be 2 of them in a list or tuple; got a list of 1"
    ):
        nested({}, [one])


def test_a_named_tuple_comes_back_as_one(tracing_backend):
    decoder = decoder_for("functional")
    empty = decoder.initial_state(CACHE, batch=1)
    state = state_variables(empty)
    fn, params = CONVERSIONS[tracing_backend]([state], state._replace(length=state.length + np.int32(1)))
    out = fn(params, DecoderState(*on(tracing_backend, list(empty))))
    assert type(out) is DecoderState
    assert out.length.tolist() == [1]


def test_a_shared_variable_among_the_inputs_is_an_input(tracing_backend):
    state = pytensor.shared(np.zeros(2, "float32"))
    fn, params = CONVERSIONS[tracing_backend]([state], state + np.float32(1))
    assert params == {}
    assert fn(params, on(tracing_backend, np.array([4, 5], "float32"))).tolist() == [5, 6]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint8", "bool"])
def test_dtypes_are_as_declared(tracing_backend, dtype):
    x = pt.vector("x", dtype=dtype)
    y = rms_norm(x) if dtype.startswith("float") else x[::-1]
    fn, params = CONVERSIONS[tracing_backend]([x], [x, y, x.max()])
    with x64_for(tracing_backend):  # where it would be widened, if anywhere
        out = fn(params, on(tracing_backend, np.ones(3, dtype)))
    assert {str(array.dtype).removeprefix("mlx.core.").rstrip("_") for array in out} == {dtype}


def shared(name, value=1.0):
    return pytensor.shared(np.asarray(value, "float32"), name=name)


def test_unusable_graphs_are_refused(tracing_backend):
    convert = CONVERSIONS[tracing_backend]
    x = pt.scalar("x", dtype="float32")
    with pytest.raises(ValueError, match=r"two shared variables are named 'w': rename one"):
        convert([x], x * shared("w") + shared("w"))
    with pytest.raises(ValueError, match=r"told apart by name, and a shared .*float32.* has none: give it"):
        convert([x], x * shared(None))
    with pytest.raises(ValueError, match=r"inputs must differ from one another; got x twice"):
        convert([x, x], x)
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    _, drawn = pt.random.normal(rng=rng, return_next_rng=True)
    with pytest.raises(TypeError, match=r"draws from a random generator.*make what was drawn an input"):
        convert([x], x + drawn)
    with pytest.raises(TypeError, match=r"An input must be a variable; got 3\."):
        convert([3], x)
    with pytest.raises(TypeError, match=r"inputs must be a list of variables; got x"):
        convert(x, x)
    with pytest.raises(TypeError, match=r"An output must be a variable; got None"):
        convert([x], [x, None])
    with pytest.raises(Exception, match=r"Undeclared input|MissingInput|not provided"):
        convert([], x)


def test_arguments_of_another_kind_are_refused(tracing_backend):
    x = pt.tensor("x", dtype="float32", shape=(None, 2))
    fn, params = CONVERSIONS[tracing_backend]([x], x * shared("w", [1.0, 1.0]))
    right = on(tracing_backend, np.ones((3, 2), "float32"))
    w = params["w"]
    assert fn(params, right).shape == (3, 2)
    with pytest.raises(TypeError, match=r"Input 'x' must be float32; got int32\. Nothing is cast"):
        fn(params, on(tracing_backend, np.ones((3, 2), "int32")))
    with pytest.raises(ValueError, match=r"Input 'x' must have shape \(None, 2\); got \(3, 3\)"):
        fn(params, on(tracing_backend, np.ones((3, 3), "float32")))
    with pytest.raises(ValueError, match=r"Input 'x' must have shape \(None, 2\); got \(2,\)"):
        fn(params, on(tracing_backend, np.ones(2, "float32")))
    with pytest.raises(ValueError, match=r"missing \['w'\], left over \['v'\]"):
        fn({"v": w}, right)
    with pytest.raises(TypeError, match=r"params must be a dict of arrays by name; got a list"):
        fn([w], right)
    with pytest.raises(TypeError, match=r"takes params and 1 inputs; got 2"):
        fn(params, right, right)
    with pytest.raises(TypeError, match=r"Parameter 'w' must be float32; got float16"):
        fn({"w": on(tracing_backend, np.ones(2, "float16"))}, right)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(lambda x: (x, x * 2), id="at the edge"),
        pytest.param(lambda x: (x, x.astype("float64").sum().astype("float32")), id="inside"),
    ],
)
def test_64_bits_are_refused_where_jax_has_them_off(graph):
    jax = pytest.importorskip("jax")
    x, y = graph(pt.vector("x", dtype="float64" if graph(pt.vector())[1].ndim else "float32"))
    fn, params = to_jax([x], y)
    values = np.array([1.0, 1e-10], x.dtype)
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"The graph has float64, and JAX's 64-bit"):
        jax.jit(fn)(params, values)
    with jax.enable_x64(True):
        out = jax.jit(fn)(params, values)
    assert out.dtype == y.dtype
    np.testing.assert_array_equal(out, values * 2 if y.ndim else values.sum(dtype="float64").astype("f4"))


def test_int64_is_refused_at_the_edge_only():
    jax = pytest.importorskip("jax")
    ids = pt.lvector("ids")
    fn, params = to_jax([ids], ids + 1)
    with jax.enable_x64(False), pytest.raises(ValueError, match="The graph has int64"):
        fn(params, np.array([2**40]))
    with jax.enable_x64(True):
        assert fn(params, np.array([2**40])).tolist() == [2**40 + 1]
    x = pt.vector("x", dtype="float32")
    fn, params = to_jax([x], x[pt.argmax(x)])
    with jax.enable_x64(False):
        assert fn(params, np.array([1, 7, 3], "float32")) == 7


TRACE = """
import hashlib, sys
import jax, numpy as np, pytensor, pytensor.tensor as pt
from pytensor_rope import Decoder, rms_norm, to_jax
from small_decoder import CONFIG
before = jax.config.jax_enable_x64
ids = pt.tensor("ids", shape=(2, 5), dtype="int32")
with jax.enable_x64(True):  # for now, which is not for good
    fn, params = to_jax([ids], Decoder(config=CONFIG, seed=0)(ids))
jaxpr = str(jax.make_jaxpr(fn)(params, np.zeros((2, 5), "int32")))
with pytensor.config.change_flags(floatX="float64", cast_policy="custom"):
    x = pt.matrix("x", dtype="float32")
    second = pt.grad(pt.grad(rms_norm(x).sum(), x).sum(), x)
fn, params = to_jax([x], second)
with jax.enable_x64(True):
    traced = str(jax.make_jaxpr(fn)(params, np.ones((3, 4), "float32")))
print(hashlib.sha256(traced.encode()).hexdigest())
print(before, jax.config.jax_enable_x64, "64[" in jaxpr, hashlib.sha256(jaxpr.encode()).hexdigest())
"""


def test_the_trace_depends_on_no_setting_of_pytensor():
    pytest.importorskip("jax")
    settings = ("floatX=float64", "floatX=float32,cast_policy=numpy+floatX,mode=FAST_COMPILE,optimizer=None")
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRACE],
            env=os.environ | {"PYTENSOR_FLAGS": flags, "PYTHONPATH": path, "JAX_ENABLE_X64": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for flags in settings
    ]
    try:
        first, second = (process.communicate(timeout=300)[0].split() for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert first == second
    # JAX's own choice of 64-bit numbers stays as it was, and none is computed with.
    assert first[1:4] == ["False", "False", "False"]


RUN_MLX = """
import mlx.core as mx
step = mx.import_function(sys.argv[1])
arrays = mx.load(sys.argv[2])
params = {name: arrays.pop(name) for name in [*arrays] if name.startswith("Decoder.")}
n_layer = sum(name.startswith("keys") for name in arrays)
state = [arrays[f"{of}{i}"] for of in ("keys", "values") for i in range(n_layer)] + [arrays["length"]]
for token in sys.argv[3].split(","):
    logits, *state = step((mx.array([[int(token)]], mx.int32), *state), params)
try:
    import pytensor
except ImportError:
    print("no pytensor", *logits[0].tolist())
"""


def test_a_step_exported_by_mlx_runs_without_pytensor(tmp_path):
    mx = pytest.importorskip("mlx.core")
    step, params, empty = decoding_step("mlx")
    keys, values, length = on("mlx", empty)
    n_layer = len(keys)

    def flat(token, *state, **params):
        logits, (keys, values, length) = step(params, token, [state[:n_layer], state[n_layer:-1], state[-1]])
        return [logits, *keys, *values, length]

    token = mx.array([[0]], mx.int32)
    mx.export_function(str(tmp_path / "step.mlxfn"), flat, token, *keys, *values, length, **params)
    layers = range(n_layer)
    state = {f"keys{i}": keys[i] for i in layers} | {f"values{i}": values[i] for i in layers}
    mx.savez(str(tmp_path / "arrays.npz"), **params, **state, length=length)

    text = prompt()[:15]
    out = run_alone(RUN_MLX, tmp_path / "step.mlxfn", tmp_path / "arrays.npz", ",".join(map(str, text)))
    assert out[:2] == ["no", "pytensor"]
    np.testing.assert_allclose(np.array(out[2:], "float32"), reference_logits(2)[14], rtol=0, atol=2e-4)


RUN_JAX = """
import jax, numpy as np
with open(sys.argv[1], "rb") as file:
    step = jax.export.deserialize(bytearray(file.read())).call
with np.load(sys.argv[2]) as file:
    arrays = dict(file)
params = {name: arrays.pop(name) for name in [*arrays] if name.startswith("Decoder.")}
n_layer = sum(name.startswith("keys") for name in arrays)
state = [[arrays[f"{of}{i}"] for i in range(n_layer)] for of in ("keys", "values")] + [arrays["length"]]
for token in sys.argv[3].split(","):
    logits, state = step(params, np.array([[int(token)]], "int32"), state)
try:
    import pytensor
except ImportError:
    print("no pytensor", *logits[0].tolist())
"""


def test_a_step_exported_by_jax_runs_without_pytensor(tmp_path):
    jax = pytest.importorskip("jax")
    pytest.importorskip("flatbuffers")
    step, params, empty = decoding_step("jax")
    exported = jax.export.export(jax.jit(step), platforms=("cpu", "cuda", "tpu"))(
        params, np.zeros((1, 1), "int32"), empty
    )
    (tmp_path / "step.stablehlo").write_bytes(exported.serialize())
    keys, values, length = empty
    layers = range(len(keys))
    state = {f"keys{i}": keys[i] for i in layers} | {f"values{i}": values[i] for i in layers}
    np.savez(tmp_path / "arrays.npz", **params, **state, length=length)

    text = prompt()[:15]
    out = run_alone(RUN_JAX, tmp_path / "step.stablehlo", tmp_path / "arrays.npz", ",".join(map(str, text)))
    assert out[:2] == ["no", "pytensor"]
    np.testing.assert_allclose(np.array(out[2:], "float32"), reference_logits(2)[14], rtol=0, atol=2e-4)


def mesh(n_data=1, n_model=1, kind="Auto"):
    jax = pytest.importorskip("jax")
    axis_type = getattr(jax.sharding.AxisType, kind)
    return jax.sharding.AbstractMesh((n_data, n_model), ("data", "model"), axis_types=(axis_type,) * 2)


def test_weights_are_split_by_tensor():
    specs = {
        name: tuple(s.spec) for name, s in decoder_shardings(decoder_for("functional"), mesh(2, 4)).items()
    }
    assert specs.keys() == {f"Decoder.{name}" for name in weights()}
    columns, rows, whole = (None, "model"), ("model", None), (None,)
    layer = {name: specs[f"Decoder.layers.1.{name}"] for name in ("query", "key", "value", "gate", "up")}
    assert set(layer.values()) == {columns}
    assert {specs[f"Decoder.layers.1.{name}"] for name in ("output", "down")} == {rows}
    assert {specs[name] for name in specs if name.endswith("norm")} == {whole}
    # 61 tokens are not to be divided by 4.
    assert specs["Decoder.embedding"] == specs["Decoder.head"] == (None, None)
    by_one = decoder_shardings(decoder_for("functional"), mesh(2, 1))
    assert tuple(by_one["Decoder.embedding"].spec) == rows
    assert tuple(by_one["Decoder.head"].spec) == columns


def test_joined_projections_are_split_by_their_columns():
    joined = dict(weights())
    join_projections(joined, CONFIG)
    shardings = decoder_shardings(Decoder(config=CONFIG, weights=joined), mesh(1, 2))
    for name in ("query_key_value", "gate_up"):
        assert tuple(shardings[f"Decoder.layers.0.{name}"].spec) == (None, "model")


def test_a_state_is_split_by_row_and_by_head():
    state = decoder_for("functional").initial_state(CACHE, batch=4)
    split = state_shardings(state, mesh(2, 2))
    assert {tuple(s.spec) for s in (*split.keys, *split.values)} == {("data", "model", None, None)}
    assert tuple(split.length.spec) == ("data",)
    # Neither 4 rows nor 2 heads are to be divided by 3.
    whole = state_shardings(state, mesh(3, 3))
    assert {tuple(s.spec) for s in (*whole.keys, *whole.values)} == {(None, None, None, None)}


def test_a_mesh_of_another_kind_is_refused():
    decoder = decoder_for("functional")
    with pytest.raises(ValueError, match=r"must have an axis 'tensor'; got data, model"):
        decoder_shardings(decoder, mesh(), model="tensor")
    with pytest.raises(ValueError, match=r"axis 'model' must be Auto, not Explicit: .*axis_types="):
        decoder_shardings(decoder, mesh(kind="Explicit"))
