"""Each lowering against the generic graph of the op that it stands in for."""

import os
import pickle
import subprocess
import sys
from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import applys_between
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pytensor_rope import frequencies, function, rms_norm, rotary_embedding
from pytensor_rope.activations import SiLU, TanhGELU
from pytensor_rope.angles import Angles
from pytensor_rope.attention import SinkAttention
from pytensor_rope.lowering.c.half_product import HalfProductKernel
from pytensor_rope.norm import RMSNormalize, RMSNormalizeGradient
from pytensor_rope.rotate import Rotate
from pytensor_rope.write_tokens import WriteTokens

MODES = {"c": "CVM", "numba": "NUMBA"}
# The generic graph as it is written, in NumPy: nothing to compile, and no rewrite that could lower it.
GENERIC = Mode(linker="py", optimizer=None)
# Of the largest value: a few roundings of the coarsest dtype, since sums are taken in another order.
TOLERANCE = {"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}

rng = np.random.default_rng(20240501)


def normal(*shape, dtype="float32"):
    return rng.normal(size=shape).astype(dtype)


def variables(arrays, static=False):
    """Return an input for each array: axes of 1 are known to be, others only if ``static``."""
    shapes = [[n if static or n == 1 else None for n in x.shape] for x in arrays]
    return [pt.tensor(dtype=x.dtype, shape=shape) for x, shape in zip(arrays, shapes, strict=True)]


def lower(backend, op, inputs):
    """Compile the op, and make sure that what runs is the backend's own lowering."""
    compiled = pytensor.function(inputs, op(*inputs, return_list=True), mode=MODES[backend])
    nodes = compiled.maker.fgraph.toposort()
    graphs = [node for node in nodes if isinstance(node.op, OpFromGraph)]
    if backend == "c":
        assert not graphs
        assert kernels(compiled)
    else:
        assert [type(node.op) for node in graphs] == [type(op)]
        assert not kernels(compiled)
        lowering = numba_funcify_and_cache_key.dispatch(type(op))
        assert lowering.__module__.startswith("pytensor_rope.lowering.numba.")
    return compiled


def kernels(compiled):
    return kernels_in(compiled.maker.fgraph)


def kernels_in(fgraph):
    return [
        node for node in fgraph.toposort() if type(node.op).__module__.startswith("pytensor_rope.lowering.c.")
    ]


def is_lowered(op, *inputs):
    """Return whether the C linker gets something else than the op, without compiling it."""
    graph = rewrite_graph(op(*inputs, return_list=True), include=("fast_run",), exclude=("inplace",))
    return not any(isinstance(node.op, type(op)) for node in applys_between([], graph))


def generic(op, inputs, arrays):
    graph = op.build_inner_graph(*inputs)
    return pytensor.function(inputs, graph, mode=GENERIC, on_unused_input="ignore")(*arrays)


def in_python(compiled, arrays):
    """Run the C kernel's Python twin on the function's inputs, and the constants it takes besides."""
    (node,) = kernels(compiled)
    constants = [x.data for x in node.inputs[len(arrays) :]]
    storage = [[None] for _ in node.outputs]
    node.op.perform(node, [*arrays, *constants], storage)
    return [cell[0] for cell in storage]


def assert_same(actual, expected, coarsest):
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if got.size:
            largest = np.abs(wanted.astype("float64")).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[coarsest] * largest)


def check(backend, op, *arrays, static=False):
    inputs = variables(arrays, static)
    compiled = lower(backend, op, inputs)
    expected = generic(op, inputs, arrays)
    dtypes = {str(x.dtype) for x in (*arrays, *expected)}
    coarsest = next(dtype for dtype in TOLERANCE if dtype in dtypes)
    assert_same(compiled(*arrays), expected, coarsest)
    if backend == "c":
        assert_same(in_python(compiled, arrays), expected, coarsest)


# Angles


def angles(dtype="float32", rotary_dim=6, scheme=frequencies.UNSCALED, exact=True):
    return Angles(rotary_dim=rotary_dim, base=1e4, scaling=scheme.plain(), exact=exact, dtype=dtype)


def positions(dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([0, 1, 7, most // 3, most - 1, most, least, least + 1], dtype=dtype)


@pytest.mark.parametrize(
    ("backend", "position_dtype", "dtype"),
    [
        *(("c", kind, "float32") for kind in ("int8", "int32", "int64", "uint32", "uint64")),
        *(("c", kind, "float64") for kind in ("int64", "uint64")),
        *(("numba", kind, "float32") for kind in ("int32", "uint64")),
        ("numba", "int64", "float64"),
    ],
)
def test_angles_at_the_ends_of_each_integer_type(backend, position_dtype, dtype):
    check(backend, angles(dtype), positions(position_dtype))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (0,), (2, 0)])
def test_angles_of_batched_positions(shape):
    check("c", angles(), rng.integers(-9, 9, size=shape).astype("int32"))


def test_angles_of_a_scaling_and_of_positions_out_of_order():
    op = angles(scheme=frequencies.NTK(factor=4.0), rotary_dim=10)
    check("c", op, np.arange(24, dtype="int32").reshape(4, 6)[::-1, ::2])


def test_angles_of_float_positions_stay_generic():
    assert not is_lowered(angles(), pt.vector(dtype="float32"))
    assert not is_lowered(angles(rotary_dim=None), pt.ivector(), pt.fmatrix())
    assert not is_lowered(angles(exact=False), pt.ivector())
    assert is_lowered(angles(), pt.ivector())


# Rotation


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("c", "float16"), ("c", "float32"), ("c", "float64"), ("numba", "float32")],
)
def test_rotation_of_part_of_the_head(backend, dtype, pairing):
    wide = "float64" if dtype == "float64" else "float32"
    angle = normal(3, 4, dtype=wide)
    x = normal(2, 5, 3, 11, dtype=dtype)
    check(backend, Rotate(pairing=pairing, rotary_dim=8), x, np.cos(angle), np.sin(angle), static=True)


@pytest.mark.parametrize(
    ("backend", "x_shape", "angle_shape"),
    [
        ("c", (3, 8), (3, 4)),
        ("c", (2, 5, 3, 8), (3, 4)),
        ("c", (2, 5, 3, 8), (2, 1, 3, 4)),
        ("c", (2, 5, 3, 8), (5, 3, 4)),
        ("c", (2, 5, 3, 8), (2, 5, 3, 4)),
        ("c", (2, 5, 1, 2), (2, 1, 1, 1)),
        ("c", (0, 5, 3, 8), (3, 4)),
        ("c", (2, 5, 0, 8), (2, 1, 0, 4)),
        ("numba", (2, 5, 3, 8), (5, 3, 4)),
    ],
)
def test_angles_broadcast_over_leading_axes(backend, x_shape, angle_shape):
    op = Rotate(pairing="half", rotary_dim=None)
    check(backend, op, normal(*x_shape), normal(*angle_shape), normal(*angle_shape))


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_rotation_of_arrays_that_are_not_contiguous(backend):
    x = normal(2, 3, 5, 8).transpose(0, 2, 1, 3)
    cos, sin = normal(2, 1, 6, 4)[:, :, ::2], normal(2, 1, 3, 8)[..., ::-2]
    check(backend, Rotate(pairing="adjacent", rotary_dim=None), x, cos, sin)


def test_rotation_of_strided_rows():
    op = Rotate(pairing="half", rotary_dim=4)
    check("c", op, normal(2, 3, 14)[::-1, :, ::-2], normal(3, 2), normal(3, 2))


def test_angles_that_x_broadcasts_over_stay_generic():
    op = Rotate(pairing="half", rotary_dim=None)
    x, angle = (pt.tensor(shape=(None, 3, d), dtype="float32") for d in (4, 2))
    assert is_lowered(op, x, angle, angle)
    assert is_lowered(op, x, angle[0], angle[0])
    assert not is_lowered(op, pt.tensor(shape=(1, 3, 4), dtype="float32"), angle, angle)
    assert not is_lowered(op, x[0], angle, angle)
    assert not is_lowered(op, x, angle.astype("float64"), angle.astype("float64"))


# RMSNorm


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize(
    ("backend", "dtype", "weight_dtype"),
    [
        ("c", "float16", "float32"),
        ("c", "float32", None),
        ("c", "float32", "float32"),
        ("c", "float32", "float64"),
        ("c", "float64", "float64"),
        ("numba", "float32", "float64"),
    ],
)
def test_rms_norm_and_its_gradient(backend, dtype, weight_dtype, unit_offset):
    x, g = normal(2, 3, 33, dtype=dtype), normal(2, 3, 33, dtype=dtype)
    x[0, 0] = 0
    weight = [] if weight_dtype is None else [normal(33, dtype=weight_dtype)]
    props = {"epsilon": 1e-5, "unit_offset": unit_offset}
    check(backend, RMSNormalize(**props), x, *weight)
    check(backend, RMSNormalizeGradient(**props), g, x, *weight)


@pytest.mark.parametrize("shape", [(5,), (0, 4), (3, 1)])
def test_rms_norm_of_other_shapes(shape):
    # A row of one value has no gradient but epsilon's: a small one would be all rounding.
    props = {"epsilon": 0.5, "unit_offset": False}
    weight = normal(shape[-1])
    check("c", RMSNormalize(**props), normal(*shape), weight)
    check("c", RMSNormalizeGradient(**props), normal(*shape), normal(*shape), weight)


def test_rms_norm_of_arrays_that_are_not_contiguous():
    props = {"epsilon": 1e-6, "unit_offset": False}
    x, g, weight = normal(8, 6).T[:, ::2], normal(6, 8)[::-1, ::2], normal(8)[::-2]
    check("c", RMSNormalize(**props), x, weight)
    check("c", RMSNormalizeGradient(**props), g, x, weight)


# Activations


@pytest.mark.parametrize("activation", [SiLU, TanhGELU])
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("c", "float16"), ("c", "float32"), ("c", "float64"), ("numba", "float32"), ("numba", "float64")],
)
def test_activations(backend, dtype, activation):
    x = (3 * normal(5, 600, dtype=dtype)).astype(dtype)
    x[0, :6] = 0, -0.0, 30, -30, 200, -200
    check(backend, activation(), x)


@pytest.mark.parametrize(("backend", "dtype"), [("c", "float16"), ("c", "float32"), ("numba", "float32")])
def test_activations_of_other_layouts(backend, dtype):
    wide = normal(3, 34, dtype=dtype)
    for x in (wide[:, :17], wide[:, ::2], wide[::-1, 17:], wide.T, wide[:0], wide[:, :0]):
        check(backend, SiLU(), x)
    check(backend, SiLU(), normal(2, 3, 4, dtype=dtype).transpose(2, 0, 1))
    check(backend, SiLU(), normal(1, 3, 34, dtype=dtype)[..., 17:])


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_activations_at_infinity(backend):
    x = np.array([[np.inf, -1e4, np.nan]], dtype="float32")
    for activation in (SiLU(), TanhGELU()):
        (out,) = lower(backend, activation, variables([x]))(x)
        np.testing.assert_array_equal(out, [[np.inf, 0, np.nan]])


# Products in float16


@cache
def half_product(ndim):
    a, b = (pt.tensor(dtype="float16", shape=(None,) * ndim) for _ in range(2))
    compiled = function([a, b], a @ b, backend="c").compiled
    assert [type(node.op).__name__ for node in kernels(compiled)] == ["HalfProductKernel"]
    return compiled


def check_half_product(a, b):
    compiled = half_product(a.ndim)
    wide = a.astype("float64") @ b.astype("float64")
    largest = np.abs(wide).max(initial=0)
    for out in (compiled(a, b), *in_python(compiled, [a, b])):
        assert out.dtype == "float16"
        assert out.shape == wide.shape
        # Half a unit in the last place, and the sums' own error in float32.
        np.testing.assert_allclose(out, wide, rtol=2**-11, atol=1e-5 * largest)


@pytest.mark.parametrize("m", [1, 2, 9, 70])
@pytest.mark.parametrize(("k", "n"), [(1, 3), (33, 77), (300, 700)])
def test_half_products_in_each_layout(m, k, n):
    a, b = normal(m, k, dtype="float16"), normal(k, n, dtype="float16")
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2], b[:, ::-1]):
            check_half_product(left, right)


class WithoutConversions(HalfProductKernel):
    """The kernel as it is on a processor that has no instructions for float16."""

    def c_support_code(self, **kwargs):
        return f"#undef __F16C__\n#undef __AVX512F__\n{super().c_support_code(**kwargs)}"


def test_half_products_on_processors_without_float16():
    a, b = normal(9, 33, dtype="float16"), normal(33, 70, dtype="float16")
    a[0, :4] = 2**-24, -(2**-15), 0, 60000
    inputs = [pt.tensor(dtype="float16", shape=(None, None)) for _ in range(2)]
    compiled = pytensor.function(inputs, WithoutConversions()(*inputs), mode="CVM")
    for left in (a, a[:1]):
        for right in (b, np.asfortranarray(b)):
            np.testing.assert_allclose(compiled(left, right), half_product(2)(left, right), rtol=2**-10)


def test_half_products_on_several_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    a, b = normal(600, 130, dtype="float16"), normal(130, 1100, dtype="float16")
    check_half_product(a, b)
    check_half_product(a, np.asfortranarray(b))
    check_half_product(a[:1], np.tile(b, (8, 4))[:130])


def test_half_products_of_a_column_and_of_nothing():
    a = normal(5, 40, dtype="float16")
    for b in (normal(40, 1, dtype="float16"), normal(40, 0, dtype="float16")):
        check_half_product(a, b)
    check_half_product(a[:0], normal(40, 3, dtype="float16"))
    check_half_product(a[:, :0], normal(0, 3, dtype="float16"))


def test_half_products_of_stacks():
    a, b = normal(3, 4, 20, dtype="float16"), normal(3, 20, 6, dtype="float16")
    check_half_product(a, b)
    check_half_product(a[::-1], b.transpose(0, 2, 1)[:, ::-1].transpose(0, 2, 1))
    check_half_product(a[:, :1], b)
    compiled = half_product(a.ndim)
    with pytest.raises(ValueError, match="in one stack as in the other"):
        compiled(a[:2], b)


def test_half_products_refuse_shapes_that_do_not_fit():
    a, b = normal(3, 4, dtype="float16"), normal(5, 6, dtype="float16")
    with pytest.raises(ValueError, match="as many columns"):
        half_product(2)(a, b)


def test_half_products_of_numbers_at_the_ends():
    a = np.array([[np.inf, 1, 0], [60000, 60000, 2**-24], [2**-24, 0, 0]], dtype="float16")
    b = np.array([[1, 1], [1, -1], [2**-10, 0.5]], dtype="float16")
    expected = [[np.inf, np.inf], [np.inf, 0], [2**-24, 2**-24]]
    np.testing.assert_array_equal(half_product(2)(a, b), np.array(expected, dtype="float16"))


def test_gradients_in_float16_take_half_products():
    x, w = (pt.matrix(dtype="float16") for _ in range(2))
    loss = SiLU()(x @ w).sum(dtype="float32")
    compiled = function([x, w], pytensor.grad(loss, [x, w]), backend="c").compiled
    names = [type(node.op).__name__ for node in compiled.maker.fgraph.toposort()]
    assert names.count("HalfProductKernel") == 3
    assert "Dot" not in names


# Products of other matrices, in functions of ours


@cache
def product(dtype):
    compiled = function(*_product(dtype), backend="c").compiled
    assert [type(node.op).__name__ for node in kernels(compiled)] == ["ProductKernel"]
    return compiled


def _product(dtype):
    a, b = (pt.tensor(dtype=dtype, shape=(None, None)) for _ in range(2))
    return [a, b], a @ b


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 3), (3, 1), (33, 77), (300, 4500), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_in_each_layout(dtype, k, n, m):
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    apart = np.repeat(np.repeat(b, 2, axis=1), 3, axis=0)
    for left in (a, np.repeat(a, 2, axis=1)[:, ::2]):
        for right in (b, np.asfortranarray(b), apart[::3, ::2], b[:, ::-1], b[::-1], apart[:, ::2][::3]):
            out = product(dtype)(left, right)
            wide = left.astype("float64") @ right.astype("float64")
            assert out.dtype == dtype
            assert out.shape == (m, n)
            atol = TOLERANCE[dtype] * np.abs(wide).max(initial=0)
            np.testing.assert_allclose(out, wide, rtol=0, atol=atol)


@pytest.mark.parametrize("m", [1, 2])
def test_products_refuse_shapes_that_do_not_fit(m):
    with pytest.raises(ValueError, match="as many columns"):
        product("float32")(normal(m, 4), normal(5, 6))


def test_what_is_not_finite_stays_so_in_a_product():
    a, b = (
        np.array([[np.inf, 1, 0]], dtype="float32"),
        np.array([[1, 0], [1, 2], [np.nan, 3]], dtype="float32"),
    )
    for right in (b, np.asfortranarray(b)):
        np.testing.assert_array_equal(product("float32")(a, right), [[np.nan, np.nan]])


def test_other_modes_keep_their_products():
    compiled = pytensor.function(*_product("float32"), mode="CVM")
    assert not kernels(compiled)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_product_is_the_same_on_any_number_of_threads(dtype, monkeypatch):
    compiled = half_product(2) if dtype == "float16" else product(dtype)
    a, b = normal(1, 700, dtype=dtype), normal(700, 1300, dtype=dtype)
    for right in (b, np.asfortranarray(b)):
        check_threads(compiled, [a, right], monkeypatch)


def check_threads(compiled, arrays, monkeypatch):
    results = []
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        results += [[np.array(out) for out in compiled(*arrays)] for _ in range(3)]
    for result in results[1:]:
        for out, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(out, first)


FORK = """
import os, signal, warnings
import numpy as np
import pytensor.tensor as pt
from pytensor_rope import function, rms_norm

warnings.simplefilter("error", DeprecationWarning)  # Forking a process of several threads warns.

def n_thread():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None

a, b = pt.fmatrix(), pt.fmatrix()
multiply = function([a, b], a @ b, backend="c")
normalize = function([a], rms_norm(a), backend="c")
x = np.random.default_rng(0).normal(size=(1, 700)).astype("float32")
w = np.random.default_rng(1).normal(size=(700, 1300)).astype("float32")
multiply(x[:, :1], w[:1])
before = n_thread()
wanted = multiply(x, w)
assert before is None or n_thread() == before + 2
assert normalize(w).shape == w.shape
assert before is None or n_thread() == before + 2  # The kernels share them.
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        before = n_thread()
        same = all(np.array_equal(multiply(x, w), wanted) for _ in range(100))
        os._exit(0 if same and (before is None or n_thread() == before + 2) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert np.array_equal(multiply(x, w), wanted)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kernels_share_threads_and_a_child_of_fork_has_its_own():
    run = subprocess.run(
        [sys.executable, "-c", FORK],
        env=os.environ | {"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


# Attention


def held_positions(length, sinks, ring):
    """Return the position that each slot holds after ``length`` tokens, written one after the other."""
    held = np.full(sinks + ring, -1, dtype="int32")
    for position in range(length):
        held[position if position < sinks else sinks + (position - sinks) % ring] = position
    return held


def attention_inputs(*, n_head, n_kv_head, seq, head_dim, lengths, sinks, ring=None, pads=0, dtype="float32"):
    """Return the op's inputs for a batch of streams of these lengths, whose last ``pads`` tokens are none."""
    batch = len(lengths)
    chunk = np.array([length + np.arange(seq) for length in lengths], dtype="int32").reshape(batch, seq)
    chunk[:, seq - pads :] = -1
    q, q_sink = (normal(batch, n_head, seq, head_dim, dtype=dtype) for _ in range(2))
    k, v = (normal(batch, n_kv_head, seq, head_dim, dtype=dtype) for _ in range(2))
    if ring is None:
        return [q, q_sink, k, v, chunk]
    keys, values = (normal(batch, n_kv_head, sinks + ring, head_dim, dtype=dtype) for _ in range(2))
    held = np.array([held_positions(length, sinks, ring) for length in lengths], dtype="int32")
    return [q, q_sink, k, v, chunk, keys, values, held.reshape(batch, sinks + ring)]


GROUPED = {"n_head": 6, "n_kv_head": 2, "head_dim": 10}
FLOATS = ["float16", "float32", "float64"]


@pytest.mark.parametrize("sinks", [0, 1, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_token_attends_to_the_cache(dtype, sinks):
    arrays = attention_inputs(**GROUPED, seq=1, lengths=[0, 2, 40], sinks=sinks, ring=8, dtype=dtype)
    check("c", SinkAttention(sinks=sinks, window=8, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_chunk_with_pads_attends_to_the_cache(dtype, sinks):
    arrays = attention_inputs(**GROUPED, seq=5, lengths=[0, 1, 40], sinks=sinks, ring=8, pads=2, dtype=dtype)
    check("c", SinkAttention(sinks=sinks, window=6, scale=0.3, softcap=1.5), *arrays)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_chunk_attends_to_itself(dtype, window):
    arrays = attention_inputs(**GROUPED, seq=9, lengths=[0, 0], sinks=3, pads=1, dtype=dtype)
    check("c", SinkAttention(sinks=3, window=window, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize(
    ("n_head", "n_kv_head", "seq", "head_dim"),
    [(1, 1, 1, 1), (3, 3, 1, 7), (8, 2, 2, 64), (7, 1, 1, 93), (4, 2, 70, 93), (2, 1, 33, 16)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_heads_and_chunks_of_other_sizes(dtype, n_head, n_kv_head, seq, head_dim):
    sizes = {"n_head": n_head, "n_kv_head": n_kv_head, "seq": seq, "head_dim": head_dim}
    arrays = attention_inputs(**sizes, lengths=[150], sinks=2, ring=131, dtype=dtype)
    check("c", SinkAttention(sinks=2, window=131, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize(("n_head", "seq"), [(2, 1), (6, 1), (2, 7)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_long_cache_is_attended_to_in_parts(dtype, n_head, seq, monkeypatch):
    sizes = {"n_head": n_head, "n_kv_head": 2, "seq": seq, "head_dim": 40}
    arrays = attention_inputs(**sizes, lengths=[1, 300, 900], sinks=3, ring=700, dtype=dtype)
    op = SinkAttention(sinks=3, window=650, scale=None, softcap=None)
    check("c", op, *arrays)
    compiled = pytensor.function(inputs := variables(arrays), [op(*inputs)], mode="CVM")
    check_threads(compiled, arrays, monkeypatch)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layers_are_the_same_on_any_number_of_threads(dtype, monkeypatch):
    x, weight, positions = normal(2, 300, 6, 50, dtype=dtype), normal(50, dtype=dtype), np.arange(600)
    inputs = variables([x, weight, positions])
    turned = inputs[0].transpose(0, 2, 1, 3)
    outputs = [
        rotary_embedding(turned, inputs[2].reshape((2, 300))),
        rotary_embedding(turned, inputs[2][:300], rotary_dim=8),
        rms_norm(turned),
        rms_norm(turned, inputs[1]),
    ]
    check_threads(pytensor.function(inputs, outputs, mode="CVM"), [x, weight, positions], monkeypatch)


@pytest.mark.parametrize("sizes", [{"seq": 1, "lengths": []}, {"seq": 0, "lengths": [3, 5]}])
def test_attention_of_nothing_is_nothing(sizes):
    arrays = attention_inputs(**GROUPED, **sizes, sinks=1, ring=4)
    compiled = lower("c", SinkAttention(sinks=1, window=4, scale=None, softcap=None), variables(arrays))
    for (out,) in (compiled(*arrays), in_python(compiled, arrays)):
        assert out.shape == arrays[0].shape


@pytest.mark.parametrize("seq", [1, 6])
def test_attention_over_arrays_that_are_not_contiguous(seq):
    arrays = attention_inputs(**GROUPED, seq=seq, lengths=[9, 20], sinks=2, ring=8)
    strided = [np.asfortranarray(x) for x in arrays]
    check("c", SinkAttention(sinks=2, window=8, scale=None, softcap=None), *strided)


@pytest.mark.parametrize(
    ("sizes", "window", "softcap", "dtype"),
    [
        ({"seq": 5, "lengths": [0, 1, 40], "ring": 8, "pads": 2}, 6, 1.5, "float32"),
        ({"seq": 6, "lengths": [0, 0]}, None, None, "float64"),
        ({"seq": 1, "lengths": [7, 190], "ring": 131}, 131, None, "float32"),
        ({"seq": 70, "lengths": [300], "ring": 131}, 131, None, "float32"),
        ({"seq": 150, "lengths": [100], "ring": 131, "pads": 3}, 131, None, "float64"),
    ],
)
def test_attention_on_numba(sizes, window, softcap, dtype):
    arrays = attention_inputs(**GROUPED, **sizes, sinks=2, dtype=dtype)
    check("numba", SinkAttention(sinks=2, window=window, scale=None, softcap=softcap), *arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["c", "numba"])
def test_scores_far_apart_neither_overflow_nor_vanish(backend, dtype):
    arrays = attention_inputs(**GROUPED, seq=3, lengths=[140], sinks=2, ring=131, dtype=dtype)
    arrays[0] *= 1e3
    arrays[1] *= 1e3
    check(backend, SinkAttention(sinks=2, window=131, scale=None, softcap=None), *arrays)


def test_attention_to_mixed_dtypes_stays_generic():
    op = SinkAttention(sinks=1, window=None, scale=None, softcap=None)
    q, wide = pt.tensor4(dtype="float32"), pt.tensor4(dtype="float64")
    assert is_lowered(op, q, q, q, q, pt.imatrix())
    assert not is_lowered(op, q, q, wide, wide, pt.imatrix())
    assert not is_lowered(op, q, q, q, q, pt.lmatrix())


def test_rms_norm_of_a_batched_weight_stays_generic():
    op = RMSNormalize(epsilon=1e-6, unit_offset=False)
    assert is_lowered(op, pt.fmatrix(), pt.fvector())
    assert not is_lowered(op, pt.fmatrix(), pt.fmatrix())


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_what_a_query_does_not_see_does_not_reach_it(backend):
    arrays = attention_inputs(**GROUPED, seq=4, lengths=[2], sinks=2, ring=131, pads=1)
    op = SinkAttention(sinks=2, window=131, scale=None, softcap=None)
    compiled = lower(backend, op, variables(arrays))
    (before,) = compiled(*arrays)
    for cached in arrays[5:7]:
        cached[:, :, 2:] = 1e30
    (after,) = compiled(*arrays)
    assert_same([after], [before], "float32")
    assert not before[:, :, -1].any()


@pytest.mark.parametrize("nan", [np.nan, -np.nan])
@pytest.mark.parametrize("backend", ["c", "numba"])
def test_a_not_a_number_stays_one(backend, nan):
    arrays = attention_inputs(**GROUPED, seq=1, lengths=[20], sinks=2, ring=131)
    arrays[0][0, 1] = nan
    op = SinkAttention(sinks=2, window=131, scale=None, softcap=None)
    (out,) = lower(backend, op, variables(arrays))(*arrays)
    np.testing.assert_array_equal(np.isnan(out[0]).all(axis=(1, 2)), np.arange(6) == 1)
    np.testing.assert_array_equal(np.isnan(out[0]).any(axis=(1, 2)), np.arange(6) == 1)


# Writing into a cache


def compile_write(backend, inputs):
    compiled = pytensor.function(inputs, WriteTokens()(*inputs), mode=MODES[backend])
    assert [(type(node.op).__name__, node.op.in_place) for node in kernels(compiled)] == [
        ("WriteTokensKernel", False)
    ]
    return compiled


def write_inputs(dtype="float32"):
    source = np.array([[-1, 2, 0, -1, 2], [1, -1, -1, -1, -7]], dtype="int32")
    return [normal(2, 3, 5, 4, dtype=dtype), normal(2, 3, 3, 4, dtype=dtype), source]


@pytest.mark.parametrize(("backend", "dtype"), [("c", "float16"), ("c", "float32"), ("numba", "float32")])
def test_slots_take_tokens(backend, dtype):
    arrays = write_inputs(dtype)
    inputs = variables(arrays)
    compiled = compile_write(backend, inputs)
    turned = [np.asfortranarray(x) for x in arrays]
    nothing = [arrays[0][:0], arrays[1][:0], arrays[2][:0]]
    for given in (arrays, turned, nothing):
        before = given[0].copy()
        (expected,) = generic(WriteTokens(), inputs, given)
        np.testing.assert_array_equal(compiled(*given), expected)
        np.testing.assert_array_equal(given[0], before)
        if backend == "c":
            np.testing.assert_array_equal(in_python(compiled, given)[0], expected)


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_slots_of_a_shared_cache_take_tokens_in_place(backend):
    rows, new, source = write_inputs()
    inputs = variables([new, source])
    cache = pytensor.shared(rows, shape=rows.shape)
    written = WriteTokens()(cache, *inputs)
    compiled = pytensor.function(inputs, cache.sum(), updates={cache: written}, mode=MODES[backend])
    (node,) = kernels(compiled)
    assert node.op.in_place
    memory = cache.get_value(borrow=True)
    expected = np.where((source >= 0)[:, None, :, None], np.nan, rows)
    assert np.isclose(compiled(np.full_like(new, np.nan), source), rows.sum(), rtol=1e-5)
    np.testing.assert_array_equal(cache.get_value(borrow=True), expected)
    assert np.shares_memory(cache.get_value(borrow=True), memory)


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_writing_tokens_refuses_what_does_not_fit(backend):
    arrays = write_inputs()
    compiled = compile_write(backend, variables(arrays))
    for index, axis in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (2, 1)):
        wrong = list(arrays)
        wrong[index] = grown(arrays[index], axis)
        with pytest.raises(ValueError, match=r"must (have|be)|don't fit"):
            compiled(*wrong)
    with pytest.raises(ValueError, match="not in the chunk"):
        compiled(*arrays[:2], arrays[2] + 1)


# Shapes that don't fit


def grown(x, axis):
    return np.concatenate([x, x], axis=axis)


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_rotation_refuses_shapes_that_do_not_fit(backend):
    x, cos = normal(2, 3, 8), normal(2, 3, 4)
    rotate = lower(backend, Rotate(pairing="half", rotary_dim=None), variables([x, cos, cos]))
    for wrong in (grown(cos, 1), grown(cos, 2), grown(cos, 0), cos[:, :2], cos[..., :3]):
        with pytest.raises(ValueError, match=r"angles|don't fit"):
            rotate(x, wrong, wrong)
    with pytest.raises(ValueError, match=r"angles|don't fit"):
        rotate(x[..., :6], cos, cos)


def test_rotation_refuses_what_can_not_be_paired():
    x, cos = normal(3, 7), normal(3, 3)
    whole = lower("c", Rotate(pairing="half", rotary_dim=None), variables([x, cos, cos]))
    part = lower("c", Rotate(pairing="half", rotary_dim=8), variables([x, cos, cos]))
    with pytest.raises(ValueError, match="must be even"):
        whole(x, cos, cos)
    with pytest.raises(ValueError, match="no shorter than rotary_dim"):
        part(x, normal(3, 4), normal(3, 4))
    with pytest.raises(ValueError, match="one shape"):
        whole(x[:, :6], cos, cos[:, :2])


@pytest.mark.parametrize("backend", ["c", "numba"])
def test_rms_norm_refuses_a_weight_that_does_not_fit(backend):
    x = normal(3, 8)
    normalize = lower(backend, RMSNormalize(epsilon=1e-5, unit_offset=False), variables([x, x[0]]))
    for n in (7, 9):
        with pytest.raises(ValueError, match="one value a feature"):
            normalize(x, normal(n))


def test_rms_norm_gradient_refuses_shapes_that_do_not_fit():
    x = normal(3, 8)
    gradient = lower("c", RMSNormalizeGradient(epsilon=1e-5, unit_offset=False), variables([x, x, x[0]]))
    with pytest.raises(ValueError, match="one value a feature"):
        gradient(x, x, normal(7))
    with pytest.raises(ValueError, match="the cotangent"):
        gradient(x[:2], x, x[0])


@pytest.mark.parametrize(
    ("index", "axis", "message"),
    [
        (0, 1, "q_sink must have q's shape"),
        (1, 2, "q_sink must have q's shape"),
        (2, 2, "k must have"),
        (3, 1, "v must have"),
        (4, 1, "positions must be"),
        (5, 1, "the cached keys"),
        (6, 2, "the cached values"),
        (7, 0, "the slots' positions"),
        (7, 1, "the slots' positions"),
    ],
)
def test_attention_refuses_shapes_that_do_not_fit(index, axis, message):
    arrays = attention_inputs(**GROUPED, seq=3, lengths=[4, 5], sinks=1, ring=8)
    attend = lower("c", SinkAttention(sinks=1, window=8, scale=None, softcap=None), variables(arrays))
    for wrong in (grown(arrays[index], axis), np.take(arrays[index], [0], axis=axis)):
        with pytest.raises(ValueError, match=message):
            attend(*arrays[:index], wrong, *arrays[index + 1 :])


def test_attention_refuses_heads_that_do_not_divide():
    arrays = attention_inputs(n_head=5, n_kv_head=2, seq=3, head_dim=4, lengths=[4], sinks=1)
    attend = lower("c", SinkAttention(sinks=1, window=8, scale=None, softcap=None), variables(arrays))
    with pytest.raises(ValueError, match="must divide"):
        attend(*arrays)


# Where the lowerings are found


def test_memory_between_calls_is_reused_only_where_it_fits():
    x, cos, sin, weight = pt.fmatrix(), pt.fmatrix(), pt.fmatrix(), pt.fvector()
    rotated = Rotate(pairing="half", rotary_dim=None)(x, cos, sin)
    out = RMSNormalize(epsilon=1e-6, unit_offset=False)(rotated, weight)
    compiled = pytensor.function([x, cos, sin, weight], out, mode="CVM")
    assert len(kernels(compiled)) == 2
    (generic_rotated,) = Rotate(pairing="half", rotary_dim=None).build_inner_graph(x, cos, sin)
    generic_out = RMSNormalize(epsilon=1e-6, unit_offset=False).build_inner_graph(generic_rotated, weight)
    expected = pytensor.function([x, cos, sin, weight], generic_out, mode=GENERIC)
    calls = [
        (normal(seq, d), normal(seq, d // 2), normal(seq, d // 2), normal(d))
        for seq, d in ((3, 8), (3, 8), (5, 4), (1, 8), (3, 8))
    ]
    for got, arrays in zip([compiled(*arrays) for arrays in calls], calls, strict=True):
        assert_same([got], expected(*arrays), "float32")


def test_ops_in_other_ops_and_in_loops_are_lowered():
    x = pt.fmatrix("x")
    norm = RMSNormalize(epsilon=1e-6, unit_offset=False)
    inner = OpFromGraph([x], [norm(x)])(x)
    looped = pytensor.scan(norm, outputs_info=x, n_steps=2, return_updates=False)
    compiled = pytensor.function([x], [inner, looped], mode="CVM")
    inner_graphs = [node.op for node in compiled.maker.fgraph.toposort() if hasattr(node.op, "fgraph")]
    assert len(inner_graphs) == 2
    for op in inner_graphs:
        names = [type(node.op).__name__ for node in op.fn.maker.fgraph.toposort()]
        assert "RMSNormalizeKernel" in names


LOAD_AND_COMPILE = """
import pickle, sys
import pytensor
x, out = pickle.load(sys.stdin.buffer)
compiled = pytensor.function([x], out, mode="CVM")
print([type(node.op).__name__ for node in compiled.maker.fgraph.toposort()])
"""


def test_a_graph_is_lowered_in_a_process_that_only_unpickles_it():
    x = pt.fmatrix("x")
    graph = pickle.dumps((x, RMSNormalize(epsilon=1e-6, unit_offset=False)(x)))
    command = [sys.executable, "-W", "ignore", "-c", LOAD_AND_COMPILE]
    done = subprocess.run(command, input=graph, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "['RMSNormalizeKernel']"


def test_kernels_compile_with_the_flags_that_pymc_sets():
    flags = f"{pytensor.config.gcc__cxxflags} -fno-exceptions -fno-unwind-tables"
    x, weight = pt.fmatrix("x"), pt.fvector("weight")
    y = RMSNormalize(epsilon=1e-6, unit_offset=False)(x, weight)
    with pytensor.config.change_flags(gcc__cxxflags=flags):
        compiled = pytensor.function([x, weight], y, mode="CVM")
    np.testing.assert_allclose(compiled([[2, -2]], [1, 3]), [[1, -3]], rtol=1e-6)


@pytest.mark.parametrize("mode", ["NUMBA", "JAX", "MLX", "FAST_COMPILE"])
def test_no_kernel_reaches_another_linker(mode):
    x = pt.fmatrix("x")
    fgraph = FunctionGraph([x], [RMSNormalize(epsilon=1e-6, unit_offset=False)(x)])
    get_mode(mode).excluding("inplace").optimizer.rewrite(fgraph)
    assert not kernels_in(fgraph)
