"""MLX's lowerings against the generic graphs of the ops, and what its functions keep in memory."""

import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from pytensor_rope import function
from pytensor_rope.attention import SinkAttention
from pytensor_rope.norm import RMSNormalize
from pytensor_rope.rotate import Rotate

mx = pytest.importorskip("mlx.core")

from pytensor.link.mlx.dispatch.basic import mlx_funcify  # noqa: E402

from pytensor_rope.lowering.mlx import attention, norm, products  # noqa: E402
from pytensor_rope.lowering.mlx.layout import column_major  # noqa: E402

# The generic graph as it is written, in NumPy.
GENERIC = Mode(linker="py", optimizer=None)
# Of the largest value. float16 is rounded once at the end; sums are taken in another order.
TOLERANCE = {"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}
DTYPES = list(TOLERANCE)

rng = np.random.default_rng(20240501)


def normal(*shape, dtype="float32"):
    return rng.normal(size=shape).astype(dtype)


def check(op, *arrays):
    """Compare the lowering with the op's own graph, traced by ``mx.compile`` and not."""
    inputs = [pt.tensor(dtype=x.dtype, shape=x.shape) for x in arrays]
    (expected,) = pytensor.function(
        inputs, op.build_inner_graph(*inputs), mode=GENERIC, on_unused_input="ignore"
    )(*arrays)
    lowering = mlx_funcify.dispatch(type(op))
    assert lowering.__module__.startswith("pytensor_rope.lowering.mlx.")
    unknown = [pt.tensor(dtype=x.dtype, shape=(None,) * x.ndim) for x in arrays]
    lowered = lowering(op(*unknown, return_list=True)[0].owner.op)
    given = [mx.array(x, dtype=getattr(mx, x.dtype.name)) for x in arrays]
    for run in (lowered, mx.compile(lowered)):
        out = run(*given)
        assert str(out.dtype) == f"mlx.core.{expected.dtype}"
        assert tuple(out.shape) == expected.shape
        if expected.size:
            largest = np.abs(expected.astype("float64")).max()
            got = np.array(out.astype(mx.float64))
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[expected.dtype.name] * largest)


@pytest.fixture
def like_a_gpu(monkeypatch):
    """Choose the forms that a GPU gets; MLX computes them on a CPU too."""
    for module in (attention, norm):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


# Rotation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_rotate(dtype, pairing, rotary_dim):
    n_pair = (rotary_dim or 6) // 2
    angles = rng.normal(size=(2, 1, 5, n_pair))
    angle_dtype = "float64" if dtype == "float64" else "float32"
    cos, sin = np.cos(angles).astype(angle_dtype), np.sin(angles).astype(angle_dtype)
    check(Rotate(pairing=pairing, rotary_dim=rotary_dim), normal(2, 3, 5, 6, dtype=dtype), cos, sin)


@pytest.mark.parametrize("shape", [(0, 3, 5, 6), (2, 3, 0, 6)])
def test_rotate_of_nothing(shape):
    cos = normal(shape[0], 1, shape[2], 3)
    check(Rotate(pairing="half", rotary_dim=None), normal(*shape), cos, cos)


def test_rotate_without_batch():
    cos, sin = normal(5, 2), normal(5, 2)
    check(Rotate(pairing="adjacent", rotary_dim=4), normal(5, 4), cos, sin)


@pytest.mark.parametrize(
    ("x_shape", "cos_shape", "message"),
    [
        ((1, 3, 5, 6), (4, 3), "x has 5 tokens along its sequence axis"),
        ((2, 3, 5, 6), (3, 1, 5, 3), "they don't match"),
        ((1, 3, 5, 4), (5, 3), "rotary_dim=6 is larger than x's last axis, 4"),
    ],
)
def test_rotate_refuses_what_does_not_fit(x_shape, cos_shape, message):
    op = Rotate(pairing="half", rotary_dim=6)
    inputs = [pt.tensor(dtype="float32", shape=(None,) * len(shape)) for shape in (x_shape, cos_shape)]
    rotated = function(
        [*inputs, inputs[1].type("sin")], op(*inputs, inputs[1]), backend="mlx", on_unused_input="ignore"
    )
    with pytest.raises(ValueError, match=message):
        rotated(normal(*x_shape), normal(*cos_shape), normal(*cos_shape))


# Root-mean-square normalisation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(dtype, unit_offset, weighted):
    weight = [normal(6, dtype="float32" if dtype == "float16" else dtype)] if weighted else []
    check(RMSNormalize(epsilon=1e-5, unit_offset=unit_offset), 300 * normal(2, 3, 6, dtype=dtype), *weight)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_rms_norm_by_the_fused_kernel(like_a_gpu, dtype, unit_offset):
    op = RMSNormalize(epsilon=1e-5, unit_offset=unit_offset)
    # Squares of these overflow in float16.
    check(op, 300 * normal(2, 3, 6, dtype=dtype), normal(6))
    check(op, normal(3, 6, dtype=dtype))


@pytest.mark.parametrize("shape", [(0, 6), (3, 0)])
def test_rms_norm_of_nothing(shape):
    check(RMSNormalize(epsilon=1e-5, unit_offset=False), normal(*shape), normal(shape[-1]))


# Attention


def attention_inputs(dtype="float32", batch=2, seq=3, slots=7, start=6):
    """Return what 4 query heads and 2 key/value heads attend with; with ``slots`` of None to no cache."""
    q, q_sink = normal(batch, 4, seq, 6, dtype=dtype), normal(batch, 4, seq, 6, dtype=dtype)
    k, v = normal(batch, 2, seq, 6, dtype=dtype), normal(batch, 2, seq, 6, dtype=dtype)
    positions = np.tile(np.arange(start, start + seq, dtype="int32"), (batch, 1))
    if slots is None:
        return q, q_sink, k, v, positions
    keys, values = normal(batch, 2, slots, 6, dtype=dtype), normal(batch, 2, slots, 6, dtype=dtype)
    slot_positions = np.where(np.arange(slots) < start, np.arange(slots), -1).astype("int32")
    return q, q_sink, k, v, positions, keys, values, np.tile(slot_positions, (batch, 1))


def sink_op(sinks=2, window: int | None = 4, scale=0.5, softcap=None):
    return SinkAttention(sinks=sinks, window=window, scale=scale, softcap=softcap)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seq", [1, 3])
def test_attention_over_a_cache(dtype, seq):
    check(sink_op(), *attention_inputs(dtype, seq=seq))


@pytest.mark.parametrize(
    "props", [{"sinks": 0}, {"window": None}, {"scale": None}, {"softcap": 0.7}, {"sinks": 9}], ids=str
)
def test_attention_of_other_props(props):
    check(sink_op(**props), *attention_inputs())


@pytest.mark.parametrize("sinks", [0, 2])
def test_attention_of_a_chunk_alone(sinks):
    check(sink_op(sinks=sinks), *attention_inputs(slots=None, start=0))


@pytest.mark.parametrize("slots", [None, 5])
def test_attention_of_padding_and_of_rows_that_see_nothing(slots):
    q, q_sink, k, v, positions, *cache = attention_inputs(slots=slots, start=0)
    positions[0] = -1
    positions[1, 2] = -1
    check(sink_op(), q, q_sink, k, v, positions, *cache)


@pytest.mark.parametrize("empty", [{"batch": 0}, {"seq": 0}, {"slots": 0, "start": 0}], ids=str)
def test_attention_of_nothing(empty):
    check(sink_op(), *attention_inputs(**empty))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_attention_by_the_fused_kernel(like_a_gpu, monkeypatch, dtype):
    calls = []
    fused = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(
        mx.fast,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs),
    )
    q, _, k, v, positions = attention_inputs(dtype, slots=None, start=0)
    positions[0, 0] = -1
    check(sink_op(sinks=0), q, q, k, v, positions)
    assert calls


def test_attention_with_sinks_or_a_cache_on_a_gpu(like_a_gpu):
    check(sink_op(), *attention_inputs())


def test_attention_refuses_shapes_that_would_broadcast():
    arrays = attention_inputs()
    inputs = [pt.tensor(dtype=x.dtype, shape=(None,) * x.ndim) for x in arrays]
    attend = function(inputs, sink_op()(*inputs), backend="mlx")
    names = ("q_sink", "k", "v", "positions", "the cached keys", "the cached values", "the slots' positions")
    for i, name in enumerate(names, start=1):
        with pytest.raises(ValueError, match=f"{name} must be"):
            attend(*arrays[:i], arrays[i][:1], *arrays[i + 1 :])


# Products and memory


@pytest.fixture
def shared_among_threads(monkeypatch):
    monkeypatch.setattr(products, "_LEAST_SHARED", 0)
    monkeypatch.setattr(products, "_n_core", lambda: 2)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n_in", [1, 7, 8])
def test_a_product_shared_among_threads(shared_among_threads, rows, n_in):
    x, weight = normal(rows, n_in, dtype="float64"), normal(n_in, 5, dtype="float64")
    variable, parameter = pt.tensor(dtype="float64", shape=(None, None)), pytensor.shared(weight)
    multiply = function(
        [variable], [variable @ parameter, variable.T @ (variable @ parameter)], backend="mlx"
    )
    expected = [x @ weight, x.T @ (x @ weight)]
    for got, wanted in zip(multiply(x), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14 * np.abs(wanted).max())


def test_a_product_is_shared_from_any_thread(shared_among_threads):
    x, weight = normal(2, 6), normal(6, 5)
    variable = pt.tensor(dtype="float32", shape=(None, None))
    multiply = function([variable], variable @ pytensor.shared(weight), backend="mlx")
    results = [multiply(x)]
    thread = threading.Thread(target=lambda: results.append(multiply(x)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(*results)


def test_attention_shared_among_threads(shared_among_threads, monkeypatch):
    asked = []
    stream = products._second_stream
    monkeypatch.setattr(products, "_second_stream", lambda: asked.append(1) or stream())
    check(sink_op(), *attention_inputs())
    assert asked


# Entries of an axis


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_entry_is_read_and_written_where_its_index_says(axis, monkeypatch):
    x, y = pt.tensor3(dtype="float32"), pt.matrix(dtype="float32")
    i, number = pt.iscalar(), pt.fscalar()
    at = x[(slice(None),) * axis + (i,)]
    outputs = [at, at.set(y), at.set(number), at.inc(y)]
    taken = []
    monkeypatch.setattr(mx, "slice", lambda *args, slice=mx.slice: taken.append(1) or slice(*args))
    entries = function([x, y, i, number], outputs, backend="mlx")
    reference = pytensor.function([x, y, i, number], outputs, mode="FAST_COMPILE")
    array = normal(3, 4, 5)
    new = np.delete(array, 0, axis).sum(axis)
    for index in (0, 2, -1, -3):
        for got, wanted in zip(entries(array, new, index, 7), reference(array, new, index, 7), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert taken


def test_an_index_out_of_range_is_the_nearest_one():
    x, i = pt.matrix(dtype="float32"), pt.iscalar()
    entries = function([x, i], [x[:, i], x[:, i].set(0)], backend="mlx")
    array = normal(3, 4)
    for outside, nearest in ((4, 3), (100, 3), (-5, 0)):
        read, written = entries(array, outside)
        np.testing.assert_array_equal(read, array[:, nearest])
        np.testing.assert_array_equal(written, np.where(np.arange(4) == nearest, 0, array))


def test_an_index_that_is_known_is_not_looked_up():
    x = pt.matrix(dtype="float32")
    array = normal(3, 4)
    got = function([x], [x[:, 1], x[-1].set(0), x[1:, 2]], backend="mlx")(array)
    zeroed = np.concatenate([array[:-1], np.zeros((1, 4), dtype="float32")])
    for out, wanted in zip(got, [array[:, 1], zeroed, array[1:, 2]], strict=True):
        np.testing.assert_array_equal(out, wanted)


def strides(variable):
    return memoryview(variable.get_value(borrow=True)).strides


def test_a_matrix_read_transposed_is_laid_out_for_it(shared_among_threads):
    weight = normal(7, 4)
    parameter, row = pytensor.shared(weight), pt.iscalar()
    x = pt.tensor(dtype="float32", shape=(None, None))
    head = function([x], x @ parameter.T, backend="mlx")
    given = normal(2, 4)
    np.testing.assert_allclose(head(given), given @ weight.T, rtol=0, atol=2e-6)
    assert strides(parameter) == (4, 28)
    np.testing.assert_array_equal(function([row], parameter[row], backend="mlx")(3), weight[3])
    laid_out = parameter.get_value(borrow=True)
    assert column_major(laid_out) is laid_out


def test_a_matrix_read_as_it_is_stays():
    parameter = pytensor.shared(normal(7, 4))
    x = pt.tensor(dtype="float32", shape=(None, None))
    function([x], x @ parameter, backend="mlx")(normal(2, 7))
    assert strides(parameter) == (16, 4)


def test_weights_are_kept_once():
    x = pt.tensor(dtype="float32", shape=(None, None))
    before = mx.get_active_memory()
    parameter = pytensor.shared(normal(1000, 1000))
    multiply = function([x], x @ parameter, backend="mlx")
    multiply(normal(1, 1000))
    assert mx.get_active_memory() - before < 1.5 * 4e6


def test_float64_weights_stay_float64():
    weight = np.array([1 + 2.0**-40])
    x = pt.tensor(dtype="float64", shape=(None,))
    scaled = function([x], x * pytensor.shared(weight), backend="mlx")(np.ones(1))
    assert scaled == weight
