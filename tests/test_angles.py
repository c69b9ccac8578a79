"""Angles: exact cosines and sines at every position, and the frequencies they come from."""

from functools import cache

import frequency_reference
import mpmath
import numpy as np
import pytensor.tensor as pt
import pytest
import reference
from conftest import compile_for

from pytensor_rope import RotaryEmbedding, inverse_frequencies
from pytensor_rope.frequencies import NTK, FrequencyFactors, Linear, Llama3, Proportional, YaRN

# What the project promises for float32 angles, at every position.
FLOAT32_ERROR = 3e-7

PLAIN = {
    f"{d} dimensions, base {base:g}": (d, base, "none", {}) for d in (64, 128) for base in (1e4, 5e5, 1e6)
}
SCALED = {
    "linear": (64, 1e4, Linear(factor=4.0), {"name": "linear", "factor": 4}),
    "ntk": (128, 1e4, NTK(factor=2.0), {"name": "ntk", "factor": 2}),
    "yarn": (
        64,
        150_000.0,
        YaRN(factor=32.0, original_max_position_embeddings=4096, truncate=False, attention_factor=1.0),
        {"name": "yarn", "factor": 32, "original": 4096, "truncate": False},
    ),
    "llama3": (
        128,
        5e5,
        Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
        {"name": "llama3", "factor": 8, "low": 1, "high": 4, "original": 8192},
    ),
    "factors": (
        16,
        1e4,
        FrequencyFactors(factors=[1, 1.25, 2, 3, 4.5, 8, 16, 64]),
        {"name": "factors", "factors": [1, 1.25, 2, 3, 4.5, 8, 16, 64]},
    ),
    "proportional": (
        64,
        1e6,
        Proportional(partial_rotary_factor=0.25, factor=8.0),
        {"name": "proportional", "part": 0.25, "factor": 8},
    ),
}
NARROW = ("int8", "int16", "uint8", "uint16", "uint32", "uint64")


def float64_error(backend):
    # MLX computes float64 sines and cosines in float32, to 1.3e-7: nothing a graph could change.
    return 1.5e-7 if backend == "mlx" else 1e-15


def cos_sin_graph(positions, like_dtype, rotary_dim=64, base=1e4, scaling="none"):
    like = pt.tensor(shape=(None, None, None, rotary_dim), dtype=like_dtype)
    return RotaryEmbedding(base=base, scaling=scaling).angles(positions, like=like)


@cache
def of_integers(backend, position_dtype):
    """Angles of one vector of positions, for every scheme."""
    positions = pt.tensor("positions", shape=(None,), dtype=position_dtype)
    schemes = PLAIN | (SCALED if position_dtype == "int32" else {})
    outputs = [x for how in schemes.values() for x in cos_sin_graph(positions, "float32", *how[:3])]
    return schemes, compile_for([positions], outputs, backend)


@cache
def of_narrow_integers(backend):
    inputs = [pt.tensor(shape=(None,), dtype=dtype) for dtype in NARROW]
    outputs = [x for positions in inputs for x in cos_sin_graph(positions, "float32")]
    return compile_for(inputs, outputs, backend)


@cache
def in_float64(backend):
    inputs = [pt.tensor(shape=(None,), dtype=dtype) for dtype in ("int32", "int64", "uint32")]
    outputs = [x for positions in inputs for x in cos_sin_graph(positions, "float64")]
    return compile_for(inputs, outputs, backend)


@cache
def of_floats(backend):
    inputs = [pt.tensor(shape=(None,), dtype=dtype) for dtype in ("float32", "float64")]
    outputs = [x for positions in inputs for x in cos_sin_graph(positions, "float32")]
    return compile_for(inputs, outputs, backend)


def spread(dtype):
    """Positions over the whole of a dtype's range that the angles are promised for."""
    info = np.iinfo(dtype)
    least, most = max(info.min, -(2**36)), min(info.max, 2**36)
    rng = np.random.default_rng(5)
    drawn = rng.integers(least, most, size=60, endpoint=True)
    below_2_31 = rng.integers(0, 2**31, size=60)
    chosen = [0, 1, 2, 1857, 4097, 15_962, 2**24 - 1, 2**24 + 1, 4_000_001, 2**31 - 1, 2**31, 2**32 - 1]
    signed = [*chosen, *(-position for position in chosen)]
    fitting = [p for p in [*signed, least, most, *below_2_31, *drawn] if least <= p <= most]
    return np.array(fitting, dtype=dtype)


def errors(outputs, positions, rotary_dim=64, base=1e4, scaling=None, arguments=None):
    if np.asarray(positions).dtype.kind == "f":
        expected = reference.cos_sin_table(positions, rotary_dim, base=base)
    else:
        thetas = frequency_reference.table(rotary_dim, base, **(arguments or {}))
        expected = frequency_reference.cos_sin(positions, thetas)
    return max(np.abs(np.float64(got) - right).max() for got, right in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("position_dtype", ["int32", "int64"])
def test_float32_angles_are_exact_at_every_position(backend, position_dtype):
    schemes, compiled = of_integers(backend, position_dtype)
    positions = spread(position_dtype)
    assert positions.size > 100
    outputs = compiled(positions)
    for name, cos, sin in zip(schemes, outputs[::2], outputs[1::2], strict=True):
        assert errors((cos, sin), positions, *schemes[name]) < FLOAT32_ERROR, name


def test_every_integer_dtype_gives_exact_angles(backend):
    positions = [spread(dtype) for dtype in NARROW]
    outputs = of_narrow_integers(backend)(*positions)
    for dtype, given, cos, sin in zip(NARROW, positions, outputs[::2], outputs[1::2], strict=True):
        assert errors((cos, sin), given) < FLOAT32_ERROR, dtype


def test_float64_angles_are_exact_at_every_position(backend):
    dtypes = ("int32", "int64", "uint32")
    positions = [spread(dtype) for dtype in dtypes]
    outputs = in_float64(backend)(*positions)
    for dtype, given, cos, sin in zip(dtypes, positions, outputs[::2], outputs[1::2], strict=True):
        assert errors((cos, sin), given) < float64_error(backend), dtype


def test_float_positions_between_the_integers(backend):
    positions = np.array([0.0, 0.25, -1.5, 3.0, 255.5, 256.0, 257.0, 2047.75])
    cos, sin, *wide = of_floats(backend)(positions.astype("float32"), positions)
    # A float32 angle of 2,000 radians is held to 1.2e-4.
    assert errors((cos, sin), positions) < 1.3e-4
    assert errors((cos[:5], sin[:5]), positions[:5]) < 2e-5
    assert errors(wide, positions) < FLOAT32_ERROR


def test_the_slowest_pair_at_position_15962(backend):
    # In bfloat16 the position would be 15936, and the cosine -0.268.
    _, compiled = of_integers(backend, "int32")
    cos = compiled(np.full(spread("int32").size, 15_962, dtype="int32"))[0]
    np.testing.assert_allclose(cos[:, 0], -0.908015901251, atol=1e-6)


@pytest.mark.parametrize("span", [(250, 261), (2040, 2061)])
def test_neighbouring_positions_stay_apart(backend, span):
    _, compiled = of_integers(backend, "int32")
    cos, sin = compiled(np.arange(*span, dtype="int32"))[:2]
    rows = np.concatenate([cos, sin], axis=-1)
    assert len(np.unique(rows, axis=0)) == span[1] - span[0]


def test_head_axis_is_inserted_after_the_batch_axes():
    like = pt.tensor(shape=(2, 9, 5, 64), dtype="float16")
    for shape, expected in {(5,): (5, 32), (2, 5): (2, 1, 5, 32)}.items():
        positions = pt.tensor(shape=shape, dtype="int32")
        for x in RotaryEmbedding().angles(positions, like=like):
            assert x.type.shape == expected
            assert x.dtype == "float32"


@pytest.mark.parametrize("rotary_dim", [2, 8, 64, 96, 128])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1e6])
def test_plain_frequencies_are_correctly_rounded(rotary_dim, base):
    expected = [float(theta) for theta in frequency_reference.table(rotary_dim, base)]
    assert inverse_frequencies(rotary_dim, base=base).tolist() == expected


@pytest.mark.parametrize("name", SCALED)
def test_scaled_frequencies_are_correctly_rounded(name):
    rotary_dim, base, scheme, arguments = SCALED[name]
    expected = [float(theta) for theta in frequency_reference.table(rotary_dim, base, **arguments)]
    assert inverse_frequencies(rotary_dim, base=base, scaling=scheme).tolist() == expected


def test_linear_scaling_divides_every_frequency():
    plain = inverse_frequencies(64)
    scaled = inverse_frequencies(64, scaling="linear", scaling_factor=4.0)
    assert scaled.tolist() == (plain / 4).tolist()


def test_ntk_scaling_changes_the_base():
    scaled = inverse_frequencies(128, base=10_000.0, scaling="ntk", scaling_factor=2.0)
    exponents = -2 * np.arange(64) / 128
    np.testing.assert_allclose(scaled, 20_221.261689738**exponents, rtol=1e-11)
    assert scaled[0] == 1.0
    # The slowest pair is stretched by the factor itself.
    np.testing.assert_allclose(scaled[-1], inverse_frequencies(128)[-1] / 2, rtol=1e-15)


def test_frequencies_of_a_partial_rotation_divide_by_the_rotated_dimensions():
    np.testing.assert_allclose(inverse_frequencies(4), [1.0, 0.01], rtol=1e-15)


def test_reference_agrees_with_what_is_known():
    with mpmath.workdps(30):
        assert float(reference.inverse_frequency(3, 8)) == 0.001
    cos, _ = reference.cos_sin(15_962, 0, 64)
    assert cos == pytest.approx(-0.908015901251, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rotary_dim": 7}, ValueError, "rotary_dim must be even.*got 7"),
        ({"rotary_dim": 0}, ValueError, "rotary_dim must be at least 2; got 0"),
        ({"rotary_dim": -4}, ValueError, "rotary_dim must be at least 2; got -4"),
        ({"rotary_dim": 8.0}, TypeError, r"rotary_dim must be an integer; got 8\.0"),
        ({"rotary_dim": True}, TypeError, "rotary_dim must be an integer; got True"),
        ({"base": 0.0}, ValueError, r"base must be positive and finite; got 0\.0"),
        ({"base": -1e4}, ValueError, "base must be positive and finite; got -10000"),
        ({"base": float("nan")}, ValueError, "base must be positive and finite; got nan"),
        ({"base": float("inf")}, ValueError, "base must be positive and finite; got inf"),
        ({"scaling": "su"}, ValueError, "scaling must be one of none, linear, ntk or a scheme.*got 'su'"),
        ({"scaling": None}, ValueError, "scaling must be one of none, linear, ntk or a scheme.*got None"),
        ({"scaling": "linear", "scaling_factor": 0}, ValueError, "scaling_factor must be positive.*got 0"),
        ({"scaling": Linear(factor=2.0), "scaling_factor": 4.0}, ValueError, "has no effect beside"),
        ({"scaling": "ntk", "scaling_factor": -2.0}, ValueError, "scaling_factor must be positive.*got -2"),
        ({"scaling_factor": 4.0}, ValueError, r"scaling_factor=4\.0 has no effect"),
        ({"rotary_dim": 2, "scaling": "ntk", "scaling_factor": 2.0}, ValueError, "rotary_dim above 2"),
    ],
)
def test_refused_hyper_parameters(arguments, error, message):
    arguments = {"rotary_dim": 8} | arguments
    with pytest.raises(error, match=message):
        inverse_frequencies(**arguments)
