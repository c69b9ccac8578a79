"""Graphs saved to files and loaded from them: here, on another backend, in another process."""

import importlib
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import compile_for
from hostile_graphs import archive_of, parts_of
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.printing import Print
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.tensor.blockwise import Blockwise
from small_decoder import CONFIG

import pytensor_rope
from pytensor_rope import (
    Decoder,
    GraphFileError,
    RMSNorm,
    RotaryEmbedding,
    SinkCache,
    SinkCacheState,
    load_graph,
    rms_norm,
    save_graph,
)
from pytensor_rope.base import AxisIndices

pytest.importorskip("pytensor_ml")

from pytensor_rope.graph_files import archive, files
from pytensor_rope.graph_files.allowed import CHECKS, INNER_GRAPHS, LEAVES

DATA = Path(__file__).parent / "data" / "graphs"
x = pt.tensor("x", shape=(None, 4), dtype="float32")
X = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
cube = pt.tensor("cube", shape=(None, None, None), dtype="float32")


def cumulative(sequence):
    first = pt.zeros(4, dtype="float32")
    return pytensor.scan(
        lambda a, b: a + 2 * b, sequences=[sequence], outputs_info=[first], return_updates=False
    )


# Graphs that between them have every way in which an op is described.
GRAPHS = {
    "index": lambda: x[1:, ::-1][:, 0] + x[[0, 2, 1, 1, 3], [0, 1, 2, 3, 0]] + x[-5:, None, 2][:, 0],
    "set": lambda: pt.inc_subtensor(pt.set_subtensor(x[1], np.float32(3))[[0, 0]], x[:2]),
    "sum": lambda: x.sum(0, dtype="float32", acc_dtype="float32") + x.astype("int8").sum(dtype="int8"),
    "reductions": lambda: x.prod(0) + x.max(0) - x.min(0) + x.argmax(0) + pt.any(x > 0, axis=0) + x.var(0),
    "shape": lambda: x.reshape((x.shape[0] // 2, 2, 4)).transpose(2, 0, 1).flatten() * x.shape[1],
    "alloc": lambda: (
        pt.concatenate([x, pt.zeros((2, 4), "float32"), pt.eye(4, dtype="float32")]) + pt.arange(4)
    ),
    "branch": lambda: pytensor.conditional.ifelse(x.sum() > 0, x, -x) + pt.where(x > 0, -np.inf, x),
    "scalar": lambda: (
        pt.erf(pt.sigmoid(x) ** 2) % 2 // pt.exp(pt.clip(x, -1, 1)) + pt.maximum(x, 0).astype("int32")
    ),
    "algebra": lambda: pt.linalg.cholesky(x.T @ x + 9 * pt.eye(4)) @ pt.einsum("ij,ik->jk", x, x),
    "order": lambda: (
        pt.sort(x, axis=0) + pt.argsort(x, axis=0) + pt.cumsum(x, 0) + pt.repeat(x[:3], 2, axis=0)
    ),
    "checks": lambda: CheckAndRaise(IndexError, "few")(Assert("rows")(x, x.shape[0] > 1), x.shape[0] > 2),
    "big": lambda: x + pt.constant(np.arange(4000).reshape(1000, 4).astype("float32"))[:6],
    "special": lambda: pt.concatenate([x, pt.constant(np.zeros((0, 4), "float32")) * np.float32(np.nan)]),
    "inner": lambda: OpFromGraph([x], [x * np.arange(1200, dtype="float32").reshape(300, 4)[:6]])(x),
    "scan": lambda: cumulative(x),
    "scan gradient": lambda: pt.grad(cumulative(x)[-1].sum(), x),
    "norm": lambda: RMSNorm("norm", n_in=4, unit_offset=True)(x),
    "norm gradient": lambda: pt.grad((rms_norm(x) ** 3).sum(), x),
    "rotation gradient": lambda: pt.grad((RotaryEmbedding()(x, AxisIndices(axis=0)(x)) ** 3).sum(), x),
    "batched": lambda: vectorize_graph(pt.grad((rms_norm(x) ** 3).sum(), x), {x: cube})[:, :, :4].sum(),
    "scaled": lambda: RotaryEmbedding(scaling=pytensor_rope.frequencies.Linear(factor=3.0))(x, np.arange(6)),
}


def inputs_of(output):
    return [v for v in graph_inputs([output]) if not isinstance(v, Constant) and not hasattr(v, "container")]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_loaded_graph_gives_the_same(name, tmp_path):
    out = GRAPHS[name]()
    given = inputs_of(out)
    save_graph(tmp_path / "a", given, out)
    inputs, (loaded,) = load_graph(tmp_path / "a")
    assert [(i.name, i.type) for i in inputs] == [(i.name, i.type) for i in given]
    assert loaded.type == out.type
    assert loaded.name == out.name
    values = [X if i is x else X[None] for i in given]
    np.testing.assert_array_equal(evaluate(inputs, loaded, values), evaluate(given, out, values))


def evaluate(inputs, output, values):
    """Compute without compiling, or where that is not possible, on the backend that compiles fastest."""
    has_graphs = any(isinstance(v.owner.op, OpFromGraph | Blockwise) for v in ancestors([output]) if v.owner)
    if has_graphs:
        pytest.importorskip("jax")
        return compile_for(inputs, output, "jax")(*values)
    return pytensor.function(inputs, output, mode=Mode("py", "minimum_compile"))(*values)


def test_shared_variables_come_back_with_names_values_and_gradients(tmp_path):
    w = pytensor.shared(np.float32([1, 2, 3, 4]), "w", shape=(4,))
    twin = pytensor.shared(np.float32(2), "w")
    unnamed = pytensor.shared(np.array(True))
    save_graph(tmp_path / "a", [x], [(x * w * twin).sum(), unnamed, x])
    (x2,), (total, flag, same) = load_graph(str(tmp_path / "a"))
    assert same is x2
    assert (flag.name, flag.type, flag.get_value()) == (None, unnamed.type, True)
    shared = {v.ndim: v for v in graph_inputs([total]) if hasattr(v, "container")}
    assert [(v.name, v.type) for _, v in sorted(shared.items())] == [("w", twin.type), ("w", w.type)]
    assert shared[0].get_value() == 2
    assert shared[1].get_value().tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(
        pt.grad(total, shared[1]).eval({x2: X}, mode=Mode("py", None)), 2 * X.sum(0), rtol=1e-6
    )


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_random_graph_draws_on_from_where_it_was(kind, tmp_path):
    rng = pytensor.shared(np.random.Generator(kind(7)), "rng")
    _, draw = pt.random.normal(np.zeros(3), 1.0, size=(2, 3), rng=rng, return_next_rng=True)
    save_graph(tmp_path / "a", [], draw)
    _, (loaded,) = load_graph(tmp_path / "a")
    want = np.random.Generator(kind(7)).normal(size=(2, 3))
    np.testing.assert_array_equal(pytensor.function([], loaded, mode=Mode("py", None))(), want)


def test_the_file_can_be_read(tmp_path):
    norm = RMSNorm("norm", n_in=4)
    save_graph(tmp_path / "a", [x], norm(x))
    parts = parts_of((tmp_path / "a").read_bytes())
    assert sorted(parts) == ["graph.json", "weights.safetensors"]
    description = json.loads(parts["graph.json"])
    assert description["format_version"] == 1
    assert [leaf["name"] for leaf in description["leaves"]] == ["x", "norm_weight"]
    assert description["graph"]["nodes"][0]["op"] == {
        "family": "leaf",
        "type": "pytensor_rope.norm.RMSNormalize",
        "props": {"epsilon": 1e-6, "unit_offset": False},
    }
    first = (tmp_path / "a").read_bytes()
    save_graph(tmp_path / "a", [x], norm(x))
    assert (tmp_path / "a").read_bytes() == first
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytensor.wrap_py(itypes=[pt.fmatrix], otypes=[pt.fmatrix])
def twice(a):
    return 2 * a


class Scale(Op):
    __props__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def make_node(self, value):
        return pytensor.graph.basic.Apply(self, [value], [value.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.float32(self.factor) * inputs[0]


def test_an_op_of_ones_own_is_loaded_if_it_is_allowed(tmp_path):
    out = Scale(factor=3.0)(x)
    with pytest.raises(
        GraphFileError, match=r"can't hold Scale.*pass its class in allow, to save_graph and load"
    ):
        save_graph(tmp_path / "a", [x], out)
    save_graph(tmp_path / "a", [x], out, allow=[Scale])
    with pytest.raises(GraphFileError, match=r"names '.*\.Scale', which is not among the ops"):
        load_graph(tmp_path / "a")
    _, (loaded,) = load_graph(tmp_path / "a", allow=[Scale])
    assert loaded.owner.op == Scale(3.0)
    with pytest.raises(TypeError, match="allow must hold classes of ops; got <built-in function eval>"):
        load_graph(tmp_path / "a", allow=[eval])


@pytest.mark.filterwarnings("ignore:Setting default_update:DeprecationWarning")
def with_default_update():
    count = pytensor.shared(np.int64(0), "count")
    count.default_update = count + 1
    return count + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: twice(x.astype("float32")), r"can't hold .*FromFunctionOp.*would have to keep Python code"),
        (lambda: Print("x")(x), r"can't hold Print.*would have to keep Python code"),
        (
            lambda: pytensor.scan(lambda a: Print("a")(a), sequences=[x], return_updates=False),
            "can't hold Print",
        ),
        (
            lambda: OpFromGraph([x], [x], pullback=lambda i, o, g: g)(x),
            "has a gradient of its own, a Python function",
        ),
        (lambda: x + pt.constant(1j), "is complex"),
        (lambda: x + pytensor.shared(1j, "z"), "z is complex"),
        (with_default_update, "count has a default update"),
        (lambda: x + pt.fscalar("other"), "depend on other, which is not among the inputs"),
        (lambda: CheckAndRaise(UnicodeError, "m")(x, x.sum() > 0), "exception must be one of"),
        (lambda: pytensor.scalar.basic.ScalarType("float32")("s"), "depend on s"),
    ],
)
def test_what_a_file_cant_hold_is_refused_when_it_is_saved(make, message, tmp_path):
    with pytest.raises(GraphFileError, match=message):
        save_graph(tmp_path / "a", [x], make())
    assert list(tmp_path.iterdir()) == []


def test_a_compiled_graph_is_refused(tmp_path):
    compiled = pytensor.function([x], pt.exp(x) * 2 + 1, mode="FAST_RUN").maker.fgraph
    with pytest.raises(GraphFileError):
        save_graph(tmp_path / "a", compiled.inputs, compiled.outputs)


def test_inputs_must_be_inputs(tmp_path):
    w = pytensor.shared(np.float32(1), "w")
    for inputs in ([x, x], [w], [pt.constant(1)]):
        with pytest.raises(GraphFileError, match="neither shared nor constant"):
            save_graph(tmp_path / "a", inputs, x * w)
    with pytest.raises(TypeError, match="inputs and outputs must be variables; got 1"):
        save_graph(tmp_path / "a", [x], [1])


def test_a_newer_version_and_a_damaged_file_say_so(tmp_path):
    save_graph(tmp_path / "a", [x], x + 1)
    data = (tmp_path / "a").read_bytes()
    parts = parts_of(data)
    description, weights = json.loads(parts["graph.json"]), parts["weights.safetensors"]
    for content, message in {
        archive_of(
            description | {"format_version": 2}, weights
        ): r"has format version 2, and .* reads up to 1: update",
        archive_of(
            description | {"output_names": ["y"]}, weights, sign=False
        ): "not what its digest was made of",
        data[:-30]: "it has lost its end",
        data.replace(b"Add", b"Sub"): "is damaged: Bad CRC-32",
    }.items():
        (tmp_path / "b").write_bytes(content)
        with pytest.raises(GraphFileError, match=message):
            load_graph(tmp_path / "b")


def test_an_older_version_is_upgraded(tmp_path, monkeypatch):
    save_graph(tmp_path / "a", [x], x + 1)
    monkeypatch.setattr(archive, "FORMAT_VERSION", 3)
    monkeypatch.setattr(files, "FORMAT_VERSION", 3)

    def rename(to):
        return lambda old: old | {"output_names": [f"{old['output_names'][0] or ''}{to}"]}

    monkeypatch.setattr(files, "_UPGRADES", {1: rename("two"), 2: rename("three")})
    _, (out,) = load_graph(tmp_path / "a")
    assert out.name == "twothree"


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytensor_ml.json_serialize", None)
    monkeypatch.setitem(sys.modules, "pytensor_ml", None)
    with pytest.raises(ImportError, match=r'need pytensor-ml. Install it: pip install "pytensor-rope\[ml\]"'):
        load_graph(tmp_path / "a")


@pytest.mark.parametrize("path", [*LEAVES, *INNER_GRAPHS, *CHECKS])
def test_an_allowed_class_is_an_op_that_takes_its_props(path):
    module, name = path.rsplit(".", 1)
    cls = getattr(importlib.import_module(module), name)
    assert issubclass(cls, Op)
    assert f"{cls.__module__}.{cls.__qualname__}" == path
    props = LEAVES.get(path, INNER_GRAPHS.get(path, {}))
    parameters = inspect.signature(cls.__init__).parameters
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    assert takes_any or set(props) <= set(parameters)


@pytest.mark.parametrize("name", ["decoder", "norm_gradient", "scan"])
def test_golden_files_of_version_1(name):
    """Written by data/make_graphs.py when version 1 was the current one; never write them again."""
    golden = np.load(DATA / "v1.npz")
    inputs, outputs = load_graph(DATA / f"v1_{name}.graph")
    pytest.importorskip("jax")
    got = compile_for(inputs, outputs[0], "jax")(golden[f"{name}_input"])
    np.testing.assert_allclose(got, golden[f"{name}_output"], atol=1e-5, rtol=1e-5)


GRAPH = {
    "layers": """
x = pt.tensor("x", shape=(2, 3, 8), dtype="float32")
weight = pytensor.shared(rng.standard_normal((8, 8)).astype("float32"), "weight", shape=(8, 8))
norm, rotary = RMSNorm("norm", n_in=8), RotaryEmbedding(head_dim=8)
inputs, outputs = [x], [rotary(norm(x) @ weight, np.arange(3) + 10**6)]
values = [rng.standard_normal((2, 3, 8)).astype("float32")]
""",
    "decoder": """
decoder, cache = Decoder(config=CONFIG, seed=3), SinkCache(2, 8)
ids = pt.tensor("ids", shape=(1, 4), dtype="int32")
state = decoder.initial_state(cache, 1)
arrays = [*state.keys, *state.values, state.length]
held = [pt.tensor(f"state.{i}", shape=array.shape, dtype=array.dtype) for i, array in enumerate(arrays)]
hidden, new = decoder.attend(ids, DecoderState(held[:2], held[2:4], held[4]), cache)
inputs, outputs = [ids, *held], [decoder.logits(hidden), *new.keys, *new.values, new.length]
values = [np.array([[5, 6, 7, 8]], "int32"), *arrays]
""",
}
SAVE = """
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor_rope import *
from small_decoder import CONFIG
rng = np.random.default_rng(0)
{graph}
np.savez("want.npz", *function(inputs, outputs, backend="numba")(*values))
np.savez("values.npz", *values)
save_graph("a.graph", inputs, outputs)
"""
LOAD = """
import sys
import numpy as np
from pytensor_rope import function, load_graph
inputs, outputs = load_graph("a.graph")
values = np.load("values.npz").values()
np.savez("got.npz", *function(inputs, outputs, backend=sys.argv[1])(*values))
"""


def run(code, folder, *args):
    root = Path(pytensor_rope.__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(root), str(root / "tests"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("graph", ["layers", pytest.param("decoder", marks=pytest.mark.slow)])
def test_a_graph_saved_in_numba_s_process_runs_on_the_others(graph, tmp_path):
    pytest.importorskip("numba")
    run(SAVE.format(graph=GRAPH[graph]), tmp_path)
    want = np.load(tmp_path / "want.npz")
    for other in ("c", "jax", "mlx"):
        if other != "c" and find_spec(other) is None:
            continue
        run(LOAD, tmp_path, other)
        got = np.load(tmp_path / "got.npz")
        assert len(got) == len(want)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], atol=1e-5, rtol=1e-5, err_msg=other)


def test_a_loaded_decoder_keeps_one_op_a_layer(tmp_path):
    ids = pt.tensor("ids", shape=(1, None), dtype="int32")
    save_graph(tmp_path / "a", [ids], Decoder(config=CONFIG, seed=0)(ids))
    _, (logits,) = load_graph(tmp_path / "a")
    ops = {v.owner.op for v in ancestors([logits]) if v.owner is not None}
    assert sum(type(op).__name__ == "DecoderLayer" for op in ops) == 1  # equal for both layers


def test_a_cache_in_a_graph_comes_back(tmp_path):
    cache = SinkCache(1, 3)
    q = pt.tensor("q", shape=(1, 2, 2, 4), dtype="float32")
    state = cache.initial_state(1, 2, 4)
    out, _ = cache.attend(
        q, q, q, SinkCacheState(*map(pt.as_tensor, state)), rotary=RotaryEmbedding(head_dim=4)
    )
    save_graph(tmp_path / "a", [q], out)
    (q2,), (loaded,) = load_graph(tmp_path / "a")
    value = np.random.default_rng(1).standard_normal((1, 2, 2, 4)).astype("float32")
    pytest.importorskip("jax")
    both = [compile_for([v], o, "jax")(value) for v, o in ((q, out), (q2, loaded))]
    np.testing.assert_array_equal(*both)
