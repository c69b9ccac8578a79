"""Schemes that take more than a position: its length, its axes, or whether it is a query's or a key's."""

import json
from functools import cache

import frequency_reference
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import compile_for, random
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

from pytensor_rope import RotaryEmbedding, inverse_frequencies, rotary_embedding
from pytensor_rope.frequencies import (
    NTK,
    UNSCALED,
    Axial,
    Default,
    DynamicNTK,
    FrequencyFactors,
    Linear,
    Llama3,
    LongRoPE,
    MRoPE,
    Proportional,
    XPos,
    YaRN,
)

DYNAMIC = DynamicNTK(factor=6.0, original_max_position_embeddings=4096)
SHORT, LONG = (1.0, 1.1, 1.3, 2.0), (1.0, 2.0, 5.0, 40.0)
LONGROPE = LongRoPE(short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=4096, factor=32.0)
MAGNITUDE = 1.1902380714238083  # sqrt(1 + ln 32 / ln 4096)
FLOAT32_ERROR = 3e-7

# ROTARY DIMENSION 8: four pairs.
LAYERS = {
    "plain": UNSCALED,
    "dynamic": DYNAMIC,
    "longrope": LONGROPE,
    "chunked": MRoPE(section=[2, 1, 1]),
    "interleaved": MRoPE(section=[2, 1, 1], interleaved=True, scaling=Linear(factor=2.0)),
    "axial": Axial(),
    "alternate": Axial(alternate=True),
    "xpos": XPos(scale_base=16.0),
}


@cache
def angles_on(backend):
    """Cosines and sines of every layer: one compiled function."""
    positions = pt.tensor("positions", shape=(None, None), dtype="int32")
    grid = pt.tensor("grid", shape=(3, None), dtype="int64")
    length = pt.tensor("length", shape=(None,), dtype="int32")
    outputs = {}
    for name, scheme in LAYERS.items():
        layer = RotaryEmbedding(head_dim=8, scaling=scheme)
        if scheme.n_axis > 1:
            outputs[name] = layer.angles(grid[: scheme.n_axis], dtype="float32")
        elif scheme.depends_on_length:
            outputs[name] = layer.angles(positions, dtype="float32", length=length)
            outputs[name + ", its own length"] = layer.angles(positions, dtype="float32")
        else:
            outputs[name] = layer.angles(positions, dtype="float32")
    outputs["xpos keys"] = RotaryEmbedding(head_dim=8, scaling=LAYERS["xpos"]).angles(
        positions, dtype="float32", of="keys"
    )
    flat = [x for pair in outputs.values() for x in pair]
    compiled = compile_for([positions, grid, length], flat, backend)

    def call(positions=((0,),), grid=((0,), (0,), (0,)), length=(1,)):
        positions, grid = np.array(positions, "int32"), np.array(grid, "int64")
        # One shape for all tests: JAX and MLX compile again for every other.
        values = compiled(
            np.pad(positions, [(0, 3 - len(positions)), (0, 40 - positions.shape[1])], mode="edge"),
            np.pad(grid, [(0, 0), (0, 40 - grid.shape[1])]),
            np.resize(np.array(length, "int32"), 3),
        )
        assert all(value.dtype == np.float32 for value in values)
        shown = [
            value[: len(positions), :, : positions.shape[1]] if value.ndim == 4 else value[: grid.shape[1]]
            for value in values
        ]
        return {name: (shown[2 * i], shown[2 * i + 1]) for i, name in enumerate(outputs)}

    return call


def assert_angles(got, positions, thetas, magnitude=1.0):
    expected = frequency_reference.cos_sin(positions, thetas)
    for values, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(values.reshape(right.shape), magnitude * right, rtol=0, atol=FLOAT32_ERROR)


def far_positions(*shape):
    return np.random.default_rng(3).integers(-(2**31) + 1, 2**31, shape)


@pytest.mark.parametrize(
    ("length", "base"), [(4097, 10_004.96034), (8192, 30_527.73675), (16384, 72_195.86009)]
)
def test_dynamic_ntk_follows_the_length(backend, length, base):
    # The bases are of factor 2 and 128 dimensions: here the base of 8 dimensions is derived in the same way.
    scheme = DynamicNTK(factor=2.0, original_max_position_embeddings=4096)
    np.testing.assert_allclose(
        inverse_frequencies(128, scaling=scheme, length=length),
        base ** (-np.arange(0, 128, 2) / 128),
        rtol=1e-9,
    )
    positions = far_positions(1, 40)
    got = angles_on(backend)(positions, length=[length])["dynamic"]
    stretch = 6 * length / 4096 - 5
    assert_angles(got, positions[0], frequency_reference.table(8, name="ntk", factor=stretch))


def test_dynamic_ntk_up_to_the_original_length_is_the_plain_scheme(backend):
    positions = [list(range(4090, 4096))]
    for length in (1, 10, 4096):
        got = angles_on(backend)(positions, length=[length])
        for values, plain in zip(got["dynamic"], got["plain"], strict=True):
            np.testing.assert_array_equal(values, plain)
    beyond = angles_on(backend)(positions, length=[4097])
    assert np.abs(beyond["dynamic"][0] - beyond["plain"][0]).max() > 1e-3


def test_longrope_switches_beyond_the_original_length(backend):
    positions = far_positions(1, 40)
    for length, factors in ((4095, SHORT), (4096, SHORT), (4097, LONG), (100_000, LONG)):
        got = angles_on(backend)(positions, length=[length])["longrope"]
        assert_angles(
            got, positions[0], frequency_reference.table(8, name="factors", factors=factors), MAGNITUDE
        )


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_each_row_has_its_own_length(backend, name):
    positions = np.array([[3, 4096], [3, 4095], [-7, 9000]])
    got = angles_on(backend)(positions, length=[4097, 4096, 9001])
    for given_one, own in zip(got[name], got[f"{name}, its own length"], strict=True):
        np.testing.assert_array_equal(given_one, own)
    assert np.abs(got[name][0][0, 0, 0] - got[name][0][1, 0, 0]).max() > 1e-7


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_long_sequence_leaves_nothing_behind(backend, name):
    short = [list(range(10))]
    call = angles_on(backend)
    fresh = call(short, length=[10])[name]
    call([[8191]], length=[8192])
    for before, after in zip(fresh, call(short, length=[10])[name], strict=True):
        np.testing.assert_array_equal(before, after)


def test_mrope_turns_each_pair_with_its_own_axis(backend):
    got = angles_on(backend)(grid=[[5], [3], [2]])
    cos, sin = got["chunked"]
    np.testing.assert_allclose(np.arctan2(sin, cos)[0], [5 - 2 * np.pi, 0.5, 0.03, 0.002], rtol=1e-6)
    cos, sin = got["interleaved"]
    np.testing.assert_allclose(np.arctan2(sin, cos)[0], [2.5, 0.15, 0.01, 0.0025], rtol=1e-6)


def test_mrope_of_equal_positions_is_the_rotation_of_a_sequence(backend):
    positions = np.arange(30)
    got = angles_on(backend)(positions[None], [positions] * 3)
    for values, plain in zip(got["chunked"], got["plain"], strict=True):
        np.testing.assert_array_equal(values, plain[0, 0])


def test_axial_angles_far_out(backend):
    grid = far_positions(3, 40)
    got = angles_on(backend)(grid=grid)
    for name, alternate in (("axial", False), ("alternate", True)):
        thetas = frequency_reference.table(8, name="axial", alternate=alternate)
        for part, axis in ((slice(0, 2), 0), (slice(2, 4), 1)):
            assert_angles([x[:, part] for x in got[name]], grid[axis], thetas[part])


def test_xpos_of_queries_and_keys(backend):
    positions = np.array([[0, 1, 5, 60, -3]])
    got = angles_on(backend)(positions)
    zeta = (np.arange(0, 8, 2) + 0.4 * 8) / (1.4 * 8)
    for name, sign in (("xpos", 1), ("xpos keys", -1)):
        decay = zeta ** (sign * positions[0][:, None] / 16)
        for values, plain in zip(got[name], got["plain"], strict=True):
            np.testing.assert_allclose(values, plain * decay, rtol=3e-7, atol=1e-8)


def test_xpos_scores_depend_on_the_distance_alone():
    layer = RotaryEmbedding(head_dim=8, scaling=XPos())
    q, k = random(0, 1, 1, 8), random(1, 1, 1, 8)
    at = pt.lvector("at")

    def score(of_query, of_key):
        rotated = layer(q, at[:1]), layer(k, at[1:], of="keys")
        return (rotated[0] * rotated[1]).sum().eval({at: [of_query, of_key]})

    np.testing.assert_allclose(score(1007, 1000), score(7, 0), rtol=1e-12)
    np.testing.assert_allclose(score(-3, 900), score(97, 1000), rtol=1e-12)


# Properties, over hyper-parameters: each example is a graph of its own, so they run in Python alone.

PYTHON = Mode("py", None)
dims = st.sampled_from([4, 8, 12, 64, 128])
bases = st.sampled_from([2.5, 500.0, 1e4, 5e5, 1e6])
far = st.integers(-(2**35), 2**35)


@st.composite
def static_schemes(draw, d):
    factor = draw(st.floats(1, 64))
    original = draw(st.integers(16, 2**17))
    factors = draw(st.lists(st.floats(1, 64), min_size=d // 2, max_size=d // 2))
    return draw(
        st.sampled_from(
            [
                UNSCALED,
                Linear(factor=factor),
                NTK(factor=factor),
                YaRN(factor=factor, original_max_position_embeddings=original),
                Llama3(
                    factor=factor,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=original,
                ),
                FrequencyFactors(factors=factors, attention_factor=1.3),
                Proportional(partial_rotary_factor=0.5, factor=factor),
                DynamicNTK(factor=factor, original_max_position_embeddings=original).at(3 * original),
            ]
        )
    )


@st.composite
def layers(draw, pairing=None):
    d = draw(dims)
    pairing = pairing or draw(st.sampled_from(["half", "adjacent"]))
    return RotaryEmbedding(head_dim=d, base=draw(bases), pairing=pairing, scaling=draw(static_schemes(d)))


def turn(layer, *rows_and_positions):
    """Rotate rows ``(seq, head_dim)`` by their positions, in float64."""
    outputs = [layer(pt.constant(x), pt.constant(np.array(at, "int64"))) for x, at in rows_and_positions]
    return pytensor.function([], outputs, mode=PYTHON)()


several = settings(max_examples=25, deadline=None, derandomize=True)


@several
@given(layers(), far)
def test_a_rotation_keeps_lengths_but_for_the_schemes_factor(layer, position):
    x = random(5, 3, layer.head_dim)
    (rotated,) = turn(layer, (x, [position] * 3))
    expected = layer.scaling.attention_scaling * np.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), expected, rtol=1e-14)


@several
@given(layers(), far, far)
def test_rotating_by_one_position_and_then_another(layer, a, b):
    x = random(6, 2, layer.head_dim)
    at_a, at_sum = turn(layer, (x, [a, a]), (x, [a + b, a + b]))
    (at_both,) = turn(layer, (at_a, [b, b]))
    np.testing.assert_allclose(at_both, at_sum * layer.scaling.attention_scaling, atol=1e-13)


@several
@given(layers(), far, far, far)
def test_a_score_depends_on_the_distance_alone(layer, i, j, shift):
    q, k = random(7, 1, layer.head_dim), random(8, 1, layer.head_dim)
    turned = turn(layer, (q, [i]), (k, [j]), (q, [i + shift]), (k, [j + shift]))
    scores = (turned[0] * turned[1]).sum(), (turned[2] * turned[3]).sum()
    np.testing.assert_allclose(*scores, atol=1e-12 * np.linalg.norm(q) * np.linalg.norm(k))


@several
@given(layers(pairing="half"), far)
def test_half_pairing_is_adjacent_pairing_of_permuted_dimensions(half, position):
    d = half.head_dim
    adjacent = RotaryEmbedding(head_dim=d, base=half.base, pairing="adjacent", scaling=half.scaling)
    x = random(9, 1, d)
    order = np.arange(d).reshape(2, d // 2).T.ravel()  # adjacent dimensions of the halves' pairs
    (of_half,), (of_adjacent,) = turn(half, (x, [position])), turn(adjacent, (x[:, order], [position]))
    np.testing.assert_array_equal(of_half[:, order], of_adjacent)


def test_float16_outputs_are_the_float64_result_to_one_ulp(float16_backend):
    x = random(10, 1, 2, 64, 16, dtype="float16")
    positions = np.concatenate([np.arange(32), far_positions(32)])
    schemes = [UNSCALED, NTK(factor=4.0), YaRN(factor=4.0, original_max_position_embeddings=64)]
    variable = pt.tensor("x", shape=(1, 2, None, 16), dtype="float16")
    at = pt.tensor("at", shape=(None,), dtype="int32")
    outputs = [rotary_embedding(variable, at, scaling=scheme) for scheme in schemes]
    compiled = compile_for([variable, at], outputs, float16_backend)
    for scheme, got in zip(schemes, compiled(x, positions.astype("int32")), strict=True):
        assert got.dtype == np.float16
        (exact,) = turn(RotaryEmbedding(scaling=scheme, head_dim=16), (x.astype("float64"), positions))
        right = exact.astype("float16")
        assert (np.abs(got.astype("float64") - right) <= np.spacing(np.abs(right)).astype("float64")).all()


def test_the_customary_product_on_request(backend):
    positions = np.array([0, 1, 8192, 1_000_000, 2**24 + 1], "int64")
    at = pt.lvector("at")
    layers = [RotaryEmbedding(head_dim=64, exact=exact) for exact in (False, True)]
    compiled = compile_for([at], [layer.angles(at, dtype="float32")[0] for layer in layers], backend)
    customary, exact = compiled(positions)
    product = positions.astype("float32")[:, None] * inverse_frequencies(64).astype("float32")
    np.testing.assert_allclose(customary, np.cos(product.astype("float64")), atol=2e-7)
    right, _ = frequency_reference.cos_sin(positions, frequency_reference.table(64))
    np.testing.assert_allclose(exact, right, rtol=0, atol=FLOAT32_ERROR)
    assert np.abs(customary - right).max() > 0.01


def test_graphs_of_nested_schemes_are_written_as_json_and_read_again():
    serializer = pytest.importorskip("pytensor_ml.json_serialize")
    scheme = MRoPE(section=[2, 1, 1], scaling=YaRN(factor=4.0, original_max_position_embeddings=64))
    x = pt.tensor("x", shape=(1, 2, 5, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(3, 5), dtype="int64")
    rotated = RotaryEmbedding(scaling=scheme)(x, positions)
    written = json.loads(json.dumps(serializer.serialize_graph([x, positions], [rotated])))
    inputs, outputs = serializer.deserialize_graph(written)
    values = random(11, 1, 2, 5, 8, dtype="float32"), np.arange(15).reshape(3, 5)
    before = pytensor.function([x, positions], rotated, mode=PYTHON)(*values)
    (after,) = pytensor.function(inputs, outputs, mode=PYTHON)(*values)
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"scaling": MRoPE(section=[2, 1]), "head_dim": 8},
            ValueError,
            "section must add up to .* 4 pairs",
        ),
        (
            {"scaling": LONGROPE, "head_dim": 16},
            ValueError,
            "one factor a pair.*got 4",
        ),
        ({"scaling": Axial(), "head_dim": 6}, ValueError, "divisible by 4.*got 6"),
        ({"scaling": DYNAMIC, "head_dim": 2}, ValueError, "rotary_dim above 2"),
        (
            {"scaling": YaRN, "head_dim": 8},
            ValueError,
            "scaling must be one of none.*or a scheme",
        ),
        ({"exact": 1}, TypeError, "exact must be True or False; got 1"),
        ({"head_dim": 10**400}, ValueError, "head_dim must be at most 65536; got 1000"),
    ],
)
def test_refused_layers(arguments, error, message):
    with pytest.raises(error, match=message):
        RotaryEmbedding(**arguments)


def test_refused_inputs():
    x = pt.tensor("x", shape=(2, 4, 5, 8), dtype="float32")
    multimodal = RotaryEmbedding(scaling=MRoPE(section=[2, 1, 1]))
    with pytest.raises(ValueError, match=r"position_ids must be \(3, seq\) or \(3, batch\.\.\., seq\)"):
        multimodal(x, np.arange(5))
    with pytest.raises(ValueError, match="leading axis of 3"):
        multimodal(x, np.zeros((2, 5), "int64"))
    assert multimodal(x, np.zeros((3, 2, 5), "int64")).type.shape == (2, 4, 5, 8)
    with pytest.raises(ValueError, match="of must be one of queries, keys; got 'values'"):
        RotaryEmbedding()(x, np.arange(5), of="values")
    for length, error, message in (
        (5.5, TypeError, "length must be integers.*got float"),
        (True, TypeError, "length must be a tensor.*got True"),
        ("5", TypeError, "length must be a tensor.*got '5'"),
        ([5, 0], ValueError, "length must be at least 1; got"),
    ):
        with pytest.raises(error, match=message):
            RotaryEmbedding(scaling=DYNAMIC)(x, np.arange(5), length=length)
    with pytest.raises(TypeError, match=r"position_ids must be a tensor, .*; got None"):
        RotaryEmbedding()(x, None)
    layer = RotaryEmbedding(head_dim=8)
    with pytest.raises(ValueError, match="dtype must be one of float16, float32, float64; got <class"):
        layer.angles(np.arange(5), dtype=np.float64)
    with pytest.raises(TypeError, match="position_ids must be integers or floats; got bool"):
        layer.angles(np.ones(5, "bool"), dtype="float32")
    assert layer.angles(np.arange(5), like=np.ones((1, 5, 8)))[0].dtype == "float64"
    unknown = pt.tensor("x", shape=(None,) * 4, dtype="float32")
    with pytest.raises(ValueError, match="YaRN must know how much it rotates: pass head_dim or rotary_dim"):
        RotaryEmbedding(scaling=YaRN(factor=2.0, original_max_position_embeddings=64))(unknown, np.arange(5))
    with pytest.raises(ValueError, match="a sequence of tokens has neither"):
        RotaryEmbedding(scaling=Axial()).sequential()


@pytest.mark.parametrize("scheme", [DYNAMIC, LONGROPE])
def test_a_length_of_any_integer_dtype(tracing_backend, scheme):
    layer = RotaryEmbedding(head_dim=8, scaling=scheme)
    original = scheme.original_max_position_embeddings
    for length in (original, original + 1):
        # PyTensor makes the least dtype of a number.
        dtypes = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
        lengths = [length, *(np.asarray(length, dtype) for dtype in dtypes if length <= np.iinfo(dtype).max)]
        outputs = [layer.angles(np.arange(5), dtype="float32", length=given)[0] for given in lengths]
        first, *others = compile_for([], outputs, tracing_backend)()
        np.testing.assert_array_equal(others, [first] * len(others))


def test_an_original_length_beyond_every_int32(tracing_backend):
    scheme = DynamicNTK(factor=2.0, original_max_position_embeddings=2**40)
    layer = RotaryEmbedding(head_dim=8, scaling=scheme)
    cos, _ = layer.angles(np.arange(5), dtype="float32", length=np.int32(2**31 - 1))
    plain, _ = RotaryEmbedding(head_dim=8).angles(np.arange(5), dtype="float32")
    np.testing.assert_array_equal(*compile_for([], [cos, plain], tracing_backend)())


@pytest.mark.parametrize("scheme", [DYNAMIC, LONGROPE, XPos(), Default()], ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("position_dtype", ["float16", "float32", "float64"])
def test_gradients_have_the_dtypes_of_what_they_are_of(scheme, dtype, position_dtype):
    x = pt.tensor("x", shape=(2, 5, 8), dtype=dtype)
    positions = pt.tensor("positions", shape=(5,), dtype=position_dtype)
    rotated = RotaryEmbedding(scaling=scheme)(x, positions)
    gradients = pt.grad(rotated.astype("float64").sum(), [x, positions])
    assert [gradient.dtype for gradient in gradients] == [dtype, position_dtype]


@pytest.mark.parametrize("scheme", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_a_sequence_of_no_tokens(tracing_backend, scheme):
    x = pt.tensor("x", shape=(2, 3, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(2, None), dtype="int32")
    rotate = compile_for([x, positions], RotaryEmbedding(scaling=scheme)(x, positions), tracing_backend)
    assert rotate(np.ones((2, 3, 0, 8), "float32"), np.zeros((2, 0), "int32")).shape == (2, 3, 0, 8)


def test_layers_print_as_the_code_that_makes_them():
    layer = RotaryEmbedding("rotary", head_dim=8, scaling=LONGROPE, exact=False)
    assert repr(eval(repr(layer))) == repr(layer)
