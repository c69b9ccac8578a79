"""Each lowering for JAX against the generic graph of the op that it stands in for."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.jax.linker import JAXLinker
from small_decoder import CONFIG
from test_lowering import FLOATS, GROUPED, assert_same, attention_inputs, generic, grown, normal, variables

from pytensor_rope import Decoder, SinkCache, Stream, function
from pytensor_rope.attention import SinkAttention
from pytensor_rope.rotate import Rotate

jax = pytest.importorskip("jax")


def lowered(op):
    """Return what traces the op, making sure that it is not its inner graph."""
    with jax.enable_x64(True):
        from pytensor.link.jax.dispatch.basic import jax_funcify

    assert jax_funcify.dispatch(type(op)).__module__.startswith("pytensor_rope.lowering.jax.")
    return jax_funcify(op)


def run(op, *arrays):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lowered(op))(*arrays))


def check(op, *arrays):
    expected = generic(op, variables(arrays, static=True), arrays)
    assert_same([run(op, *arrays)], expected, str(expected[0].dtype))


# Rotation


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("rotary_dim", [None, 2, 8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rotation(dtype, rotary_dim, pairing):
    wide = "float64" if dtype == "float64" else "float32"
    x = normal(2, 5, 3, 12, dtype=dtype)
    angle = normal(2, 1, 3, (rotary_dim or 12) // 2, dtype=wide)
    check(Rotate(pairing=pairing, rotary_dim=rotary_dim), x, np.cos(angle), np.sin(angle))


@pytest.mark.parametrize(
    ("x_shape", "angle_shape"),
    [
        ((3, 8), (3, 4)),
        ((2, 5, 3, 8), (3, 4)),
        ((2, 5, 3, 8), (5, 3, 4)),
        ((0, 3, 8), (3, 4)),
        ((2, 0, 8), (0, 4)),
    ],
)
def test_angles_broadcast_over_leading_axes(x_shape, angle_shape):
    check(
        Rotate(pairing="half", rotary_dim=None), normal(*x_shape), normal(*angle_shape), normal(*angle_shape)
    )


def test_rotation_keeps_the_sign_of_zero():
    x, one = np.float32([[0, -0.0, -0.0, 0, -0.0]]), np.ones((1, 2), "float32")
    out = run(Rotate(pairing="half", rotary_dim=4), x, one, np.float32(0) * one)
    (expected,) = generic(Rotate(pairing="half", rotary_dim=4), variables([x, one, one]), [x, one, 0 * one])
    assert np.signbit(out).tolist() == np.signbit(expected).tolist() == [[False, True, False, False, True]]


def test_rotation_refuses_shapes_that_do_not_fit():
    x, cos = normal(2, 3, 8), normal(2, 3, 4)
    op = Rotate(pairing="half", rotary_dim=None)
    for wrong in (grown(cos, 1), grown(cos, 2), grown(cos, 0), cos[:, :2], cos[..., :3]):
        with pytest.raises(ValueError, match=r"tokens along|angles|don't match"):
            run(op, x, wrong, wrong)
    with pytest.raises(ValueError, match="must be even"):
        run(op, x[..., :7], cos[..., :3], cos[..., :3])
    with pytest.raises(ValueError, match="rotary_dim=10 is larger"):
        run(Rotate(pairing="half", rotary_dim=10), x, normal(3, 5), normal(3, 5))


# Attention


@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_token_attends_to_the_cache(dtype, sinks):
    arrays = attention_inputs(**GROUPED, seq=1, lengths=[0, 2, 40], sinks=sinks, ring=8, dtype=dtype)
    check(SinkAttention(sinks=sinks, window=8, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_chunk_with_pads_attends_to_the_cache(dtype, sinks):
    arrays = attention_inputs(**GROUPED, seq=5, lengths=[0, 1, 40], sinks=sinks, ring=8, pads=2, dtype=dtype)
    check(SinkAttention(sinks=sinks, window=6, scale=0.3, softcap=1.5), *arrays)


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ({"seq": 6, "lengths": [0, 0], "pads": 1}, None),
        ({"seq": 6, "lengths": [0, 3]}, 4),
        ({"seq": 1, "lengths": [5], "ring": 4}, None),
        ({"seq": 3, "lengths": [], "ring": 4}, 4),
        ({"seq": 0, "lengths": [2], "ring": 4}, 4),
    ],
)
def test_attention_of_other_sizes(sizes, window):
    arrays = attention_inputs(**GROUPED, **sizes, sinks=2)
    check(SinkAttention(sinks=2, window=window, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize("seq", [1, 3])
def test_a_cache_without_slots_shows_nothing(seq):
    arrays = attention_inputs(**GROUPED, seq=seq, lengths=[0], sinks=0, ring=0)
    check(SinkAttention(sinks=0, window=None, scale=None, softcap=None), *arrays)


@pytest.mark.parametrize(
    ("length", "part"), [(0, 0), (1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 32), (90, 32)]
)
def test_a_chunk_reads_the_part_of_the_cache_that_is_full(length, part):
    arrays = attention_inputs(**GROUPED, seq=3, lengths=[0, length], sinks=2, ring=30)
    op = SinkAttention(sinks=2, window=30, scale=None, softcap=None)
    check(op, *arrays)
    for cached in arrays[5:7]:
        cached[:, :, part:] = np.nan
    assert np.isfinite(run(op, *arrays)).all()


def test_scores_far_apart_neither_overflow_nor_vanish():
    arrays = attention_inputs(**GROUPED, seq=3, lengths=[90], sinks=1, ring=80)
    arrays[0] *= 1e3
    arrays[1] *= 1e3
    check(SinkAttention(sinks=1, window=80, scale=None, softcap=None), *arrays)


def test_what_is_not_seen_does_not_reach_a_query():
    arrays = attention_inputs(**GROUPED, seq=4, lengths=[2], sinks=1, ring=80, pads=1)
    op = SinkAttention(sinks=1, window=80, scale=None, softcap=None)
    before = run(op, *arrays)
    for cached in arrays[5:7]:
        cached[:, :, 2:] = 1e30
    np.testing.assert_array_equal(run(op, *arrays), before)
    assert not before[:, :, -1].any()


def test_attention_by_vmap_is_that_of_each():
    op = SinkAttention(sinks=2, window=8, scale=None, softcap=None)
    calls = [attention_inputs(**GROUPED, seq=3, lengths=[n, n + 9], sinks=2, ring=8) for n in (1, 30)]
    with jax.enable_x64(True):
        together = jax.vmap(lowered(op))(*map(np.stack, zip(*calls, strict=True)))
    for got, arrays in zip(together, calls, strict=True):
        assert_same([np.asarray(got)], [run(op, *arrays)], "float32")


@pytest.mark.parametrize("seq", [1, 3])
def test_gradients_by_jax_are_those_of_the_generic_graph(seq):
    op = SinkAttention(sinks=2, window=8, scale=None, softcap=3.0)
    arrays = attention_inputs(
        **GROUPED, seq=seq, lengths=[0, 30], sinks=2, ring=8, pads=seq // 2, dtype="float64"
    )
    floats, indices = [*arrays[:4], *arrays[5:7]], (arrays[4], arrays[7])
    g = normal(*arrays[0].shape, dtype="float64")

    def loss(floats):
        q, q_sink, k, v, keys, values = floats
        return (lowered(op)(q, q_sink, k, v, indices[0], keys, values, indices[1]) * g).sum()

    inputs = variables(arrays, static=True)
    (out,) = op.build_inner_graph(*inputs)
    wanted = pytensor.grad((out * g).sum(), [*inputs[:4], *inputs[5:7]])
    with jax.enable_x64(True):
        got = jax.grad(loss)(floats)
    expected = pytensor.function(inputs, wanted, mode=pytensor.compile.mode.Mode("py", None))(*arrays)
    assert_same([np.asarray(x) for x in got], expected, "float64")


@pytest.mark.parametrize(
    ("index", "axis", "message"),
    [
        (0, 1, "q_sink must be"),
        (1, 2, "q_sink must be"),
        (2, 2, "k must be"),
        (3, 1, "v must be"),
        (4, 1, "positions must be"),
        (5, 1, "the cached keys must be"),
        (6, 2, "the cached values must be"),
        (7, 1, "the slots' positions must be"),
    ],
)
def test_attention_refuses_shapes_that_do_not_fit(index, axis, message):
    arrays = attention_inputs(**GROUPED, seq=3, lengths=[4, 5], sinks=1, ring=8)
    op = SinkAttention(sinks=1, window=8, scale=None, softcap=None)
    with pytest.raises(ValueError, match=message):
        run(op, *arrays[:index], grown(arrays[index], axis), *arrays[index + 1 :])


# Memory and layout


def test_the_cache_is_written_in_place():
    stream = Stream(Decoder(config=CONFIG, seed=0), SinkCache(2, 4000), backend="jax")
    stream.prefill([1, 2, 3])
    stream.step(4)
    for compiled in (stream._step.compiled, stream._read_chunk.compiled):
        variables = compiled.maker.fgraph.inputs
        shapes = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in variables]
        memory = compiled.vm.jit_fn.lower(*shapes).compile().memory_analysis()
        of_layer = stream.nbytes // CONFIG.n_layer
        assert memory.alias_size_in_bytes >= stream.nbytes
        if compiled is stream._step.compiled:
            assert memory.temp_size_in_bytes < of_layer / 2


def test_a_shared_value_is_kept_once():
    value = np.ones((997, 3), "float32")
    weight = pytensor.shared(value, "weight")
    x = pt.matrix("x", dtype="float32")
    multiply = function([x], x @ weight, backend="jax")
    assert n_live(value.shape) == 0
    multiply(np.ones((2, 997), "float32"))
    assert n_live(value.shape) == 1


def test_a_weight_can_be_read_while_a_function_is_made(monkeypatch):
    weight = pytensor.shared(np.ones(3, "float32"))
    seen, convert = [], JAXLinker.fgraph_convert

    def converting(self, *args, **kwargs):
        seen.append(weight.get_value())
        return convert(self, *args, **kwargs)

    with jax.enable_x64(True):
        monkeypatch.setattr(JAXLinker, "fgraph_convert", converting)
        double = function([], 2 * weight, backend="jax")
    assert [values.tolist() for values in seen] == [[1, 1, 1]]
    np.testing.assert_array_equal(double(), [2, 2, 2])


def n_live(shape):
    return sum(array.shape == shape for array in jax.live_arrays())


def test_one_row_is_multiplied_with_a_matrix_as_it_is_stored():
    matrix, row, rows = normal(7, 5), normal(1, 5), normal(2, 5)
    weight = pt.matrix("weight", dtype="float32")
    for x in (row, rows):
        variable = pt.tensor("x", shape=x.shape, dtype="float32")
        product = function([variable, weight], variable @ weight.T, backend="jax")
        orders = [
            node.op.new_order
            for node in product.compiled.maker.fgraph.apply_nodes
            if type(node.op).__name__ == "DimShuffle"
        ]
        assert ((1, 0) in orders) == (len(x) > 1)
        np.testing.assert_allclose(product(x, matrix), x @ matrix.T, rtol=1e-6)
