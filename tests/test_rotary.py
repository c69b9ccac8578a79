"""Rotary embeddings against the scalar reference, golden vectors, and what a rotation must keep."""

import copy
import pickle
from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import reference
from conftest import compile_for, dtypes_at_run_time, random, types_within
from pytensor.graph.basic import Constant
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors

from pytensor_rope import RotaryEmbedding, rotary_embedding
from pytensor_rope.angles import Angles
from pytensor_rope.rotate import Rotate

PAIRINGS = ("half", "adjacent")

# What each output of `rotations` is, in the reference's words.
ROTATIONS = {
    "half": {"pairing": "half"},
    "adjacent": {"pairing": "adjacent"},
    "half of 4": {"pairing": "half", "rotary_dim": 4},
    "adjacent of 4": {"pairing": "adjacent", "rotary_dim": 4},
    "linear": {"pairing": "half", "scaling": "linear", "factor": 4.0},
    "ntk": {"pairing": "adjacent", "scaling": "ntk", "factor": 2.0},
}

# At position 1 of x = 1, ..., 8 with base 10,000: public bug reports' values, good to 1e-6.
GOLDEN = {
    "half": [-3.667053, 1.391008, 2.929851, 3.991998, 3.542983, 6.169692, 7.029650, 8.003996],
    "adjacent": [-1.142640, 1.922076, 2.585679, 4.279517, 4.939751, 6.049700, 6.991997, 8.006996],
    "half of 4": [-1.984111, 1.959901, 2.462378, 4.019800, 5.0, 6.0, 7.0, 8.0],
}

ROUNDING = {"float16": 2.0**-10, "float32": 4e-7, "float64": 1e-14}


def rounding(backend, dtype):
    """Allowed error of a rotated pair of norm 1: of the angle, and of two products in ``dtype``."""
    # MLX computes float64 sines and cosines in float32.
    return 2e-7 if (backend, dtype) == ("mlx", "float64") else ROUNDING[dtype]


def library_names(settings):
    return {{"factor": "scaling_factor"}.get(name, name): value for name, value in settings.items()}


@cache
def rotations(backend, dtype):
    """Rotate ``x (batch, head, seq, 8)`` by ``positions (seq,)`` in every way of ``ROTATIONS``."""
    x = pt.tensor("x", shape=(None, None, None, 8), dtype=dtype)
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    outputs = [rotary_embedding(x, positions, **library_names(how)) for how in ROTATIONS.values()]
    assert all(out.type.dtype == dtype and out.type.shape == x.type.shape for out in outputs)
    compiled = compile_for([x, positions], outputs, backend)

    def rotate(x, positions):
        # One memory layout: Numba compiles again for every other.
        x = np.ascontiguousarray(x, dtype=dtype)
        outputs = compiled(x, np.asarray(positions, dtype="int64"))
        return dict(zip(ROTATIONS, outputs, strict=True))

    rotate.compiled = compiled
    return rotate


@cache
def wide_rotations(backend, dtype):
    """Rotate heads of 128, as real models have them."""
    x = pt.tensor("x", shape=(None, None, None, 128), dtype=dtype)
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    outputs = [rotary_embedding(x, positions, base=base) for base in (10_000.0, 500_000.0)]
    return compile_for([x, positions], outputs, backend)


@cache
def rotations_by_row(backend):
    """Rotate ``x (batch, head, seq, 256)`` by each row's own positions."""
    x = pt.tensor("x", shape=(None, None, None, 256), dtype="float32")
    positions = pt.tensor("positions", shape=(None, None), dtype="int32")
    return compile_for([x, positions], rotary_embedding(x, positions), backend)


@cache
def rotations_of_unknown_heads(backend):
    """Rotate heads whose size is not known before they come."""
    x = pt.tensor("x", shape=(None, None, None, None), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int32")
    ways = {name: ROTATIONS[name] for name in ("half", "adjacent", "half of 4", "ntk")}
    outputs = [rotary_embedding(x, positions, **library_names(how)) for how in ways.values()]
    return ways, compile_for([x, positions], outputs, backend)


@cache
def gradients(backend):
    """Gradients of a weighted sum of the rotated values, for x and for float positions, in float64."""
    x = pt.tensor("x", shape=(2, 1, 3, 8), dtype="float64")
    probe = pt.tensor("probe", shape=(2, 1, 3, 8), dtype="float64")
    positions = pt.tensor("positions", shape=(2, 3), dtype="float64")
    outputs = []
    for how in ROTATIONS.values():
        cost = (rotary_embedding(x, positions, **library_names(how)) * probe).sum()
        outputs += pt.grad(cost, [x, positions])
    return compile_for([x, probe, positions], outputs, backend)


def assert_rotated(got, x, positions, tolerance, **how):
    expected = reference.rotate(x, positions, **how)
    largest = np.abs(x).max() * np.sqrt(2)
    np.testing.assert_allclose(np.float64(got), expected, rtol=0, atol=tolerance * largest)


def test_every_rotation_against_the_scalar_reference(backend, dtype):
    x = random(0, 2, 3, 7, 8, dtype=dtype)
    positions = [0, 1, 2, 77, 4097, 100_003, -9]
    for name, got in rotations(backend, dtype)(x, positions).items():
        assert_rotated(got, x, positions, rounding(backend, dtype), **ROTATIONS[name])


def test_golden_vectors(backend, dtype):
    rotated = rotations(backend, dtype)(np.arange(1.0, 9.0).reshape(1, 1, 1, 8), [1])
    for name, golden in GOLDEN.items():
        tolerance = 8.5 * rounding(backend, dtype) + 1e-6
        np.testing.assert_allclose(rotated[name][0, 0, 0], golden, rtol=0, atol=tolerance, err_msg=name)


def test_dtype_in_is_dtype_out_at_run_time(backend, dtype):
    compiled = rotations(backend, dtype).compiled
    x, positions = np.ones((1, 1, 2, 8), dtype), np.arange(2)
    assert dtypes_at_run_time(compiled, x, positions) == [dtype] * len(ROTATIONS)


def test_position_0_is_the_identity(backend, dtype):
    x = random(1, 2, 3, 7, 8, dtype=dtype)
    for name, got in rotations(backend, dtype)(x, [0] * 7).items():
        np.testing.assert_array_equal(got, x, err_msg=name)


def test_norm_is_kept(backend, dtype):
    x = random(2, 2, 3, 7, 8, dtype=dtype)
    before = np.linalg.norm(np.float64(x), axis=-1)
    for name, got in rotations(backend, dtype)(x, [3, 50, 511, 8191, 2**20, 2**30, 2**31 - 1]).items():
        after = np.linalg.norm(np.float64(got), axis=-1)
        np.testing.assert_allclose(after, before, rtol=4 * rounding(backend, dtype), err_msg=name)


def test_scores_depend_on_the_distance_alone(backend, dtype):
    q, k = random(3, 1, 1, 1, 8), random(4, 1, 1, 1, 8)
    starts = [0, 1, 13, 4096, 1_000_000, 2**30, -500]
    rotate = rotations(backend, dtype)
    x = np.concatenate([np.tile(q, (1, 1, 7, 1)), np.tile(k, (1, 1, 7, 1))], axis=1)
    rotated_q = rotate(x, [start + 5 for start in starts])
    rotated_k = rotate(x, starts)
    for name in ROTATIONS:
        q_rows, k_rows = np.float64(rotated_q[name][0, 0]), np.float64(rotated_k[name][0, 1])
        scores = (q_rows * k_rows).sum(axis=-1)
        scale = np.linalg.norm(q) * np.linalg.norm(k)
        assert np.ptp(scores) < 4 * rounding(backend, dtype) * scale, name


def test_linear_scaling_by_4_at_8_is_no_scaling_at_2(backend, dtype):
    x = random(5, 2, 3, 7, 8, dtype=dtype)
    rotate = rotations(backend, dtype)
    scaled = rotate(x, np.arange(7) * 4)["linear"]
    plain = rotate(x, np.arange(7))["half"]
    np.testing.assert_allclose(np.float64(scaled), np.float64(plain), atol=8 * rounding(backend, dtype))


def test_pairings_are_one_rotation_in_two_orders(backend, dtype):
    x = random(6, 2, 3, 7, 8, dtype=dtype)
    to_half = [0, 2, 4, 6, 1, 3, 5, 7]
    rotate = rotations(backend, dtype)
    adjacent = np.float64(rotate(x, range(7))["adjacent"][..., to_half])
    half = np.float64(rotate(x[..., to_half], range(7))["half"])
    # Not bit for bit: a compiler may fuse a product and a sum in one loop and not in the other.
    np.testing.assert_allclose(adjacent, half, rtol=0, atol=4 * rounding(backend, dtype))


def test_what_is_not_rotated_passes_through_bit_for_bit(backend, dtype):
    x = random(7, 2, 3, 7, 8, dtype=dtype)
    x[0, 0, 0, 4:] = [np.inf, -0.0, np.finfo(dtype).tiny, np.finfo(dtype).max]
    rotated = rotations(backend, dtype)(x, [1, 2, 3, 4, 5, 6, 2**31])
    for name in ("half of 4", "adjacent of 4"):
        assert rotated[name][..., 4:].tobytes() == x[..., 4:].tobytes()
        assert not (rotated[name][..., :4] == x[..., :4]).any(axis=-1).all()


def test_token_by_token_is_the_whole_sequence(backend, dtype):
    x = random(8, 2, 3, 7, 8, dtype=dtype)
    rotate = rotations(backend, dtype)
    whole = rotate(x, np.arange(100, 107))
    for t in (0, 3, 6):
        for name, got in rotate(x[:, :, t : t + 1], [100 + t]).items():
            # XLA's float64 cosine may differ by a unit in the last place between array lengths.
            np.testing.assert_allclose(
                np.float64(got), np.float64(whole[name][:, :, t : t + 1]), atol=rounding(backend, dtype)
            )


@pytest.mark.parametrize("start", [250, 2040])
def test_neighbouring_positions_rotate_apart(backend, dtype, start):
    # In float16 positions 2048 and 2049 are one number, in bfloat16 256 and 257.
    positions = np.arange(start, start + 7)
    x = np.tile(random(9, 1, 1, 1, 8), (1, 1, 7, 1))
    rows = rotations(backend, dtype)(x, positions)["half"][0, 0]
    assert len(np.unique(rows, axis=0)) == 7


def test_heads_of_128_far_out(backend, dtype):
    positions = np.array([0, 1857, 4097, 8191, 16_384, 131_071, 4_000_001, 2**31 - 1])
    x = random(10, 1, 1, positions.size, 128, dtype=dtype)
    for base, got in zip((1e4, 5e5), wide_rotations(backend, dtype)(x, positions), strict=True):
        tolerance = rounding(backend, dtype) * (2 if dtype == "float64" else 1)
        assert_rotated(got, x, positions, tolerance, base=base)


def test_float16_is_the_exact_rotation_rounded_once(float16_backend):
    positions = np.array([0, 1857, 4097, 8191, 16_384, 131_071, 4_000_001, 2**31 - 1])
    x = random(11, 1, 1, positions.size, 128, dtype="float16")
    got = wide_rotations(float16_backend, "float16")(x, positions)[0]
    expected = reference.rotate(x, positions)
    # Half a unit in the last place, and the float32 angle's error where the two terms nearly cancel.
    allowed = 0.51 * np.spacing(np.abs(expected).astype("float16")).astype("float64") + 3e-6
    assert (np.abs(np.float64(got) - expected) <= allowed).all()


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_each_row_has_its_own_positions(backend, seq):
    # With two rows, seq = 2 is where broadcasting along the wrong axis would go unseen.
    positions = np.array([[5], [3]], dtype="int32") + np.arange(seq, dtype="int32")
    x = random(12, 2, 3, seq, 256, dtype="float32")
    got = rotations_by_row(backend)(x, positions)
    assert got.shape == x.shape
    for row in range(2):
        assert_rotated(got[row], x[row], positions[row], ROUNDING["float32"])


def test_one_row_of_positions_serves_the_whole_batch(backend):
    x = pt.tensor("x", shape=(2, 3, 2, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(1, 2), dtype="int32")
    value = random(13, 2, 3, 2, 8, dtype="float32")
    got = compile_for([x, positions], rotary_embedding(x, positions), backend)(value, [[5, 6]])
    assert_rotated(got, value, [5, 6], ROUNDING["float32"])


def test_equal_rows_stay_equal_while_decoding(backend):
    positions = np.full((2, 1), 6, dtype="int32")
    got = rotations_by_row(backend)(np.ones((2, 16, 1, 256), "float32"), positions)
    assert (got == got[0, 0, 0]).all()
    np.testing.assert_allclose(got[0, 0, 0, :4], [1.239586, 1.409030, 1.350211, 1.114843], atol=1e-6)


def test_any_number_of_batch_axes(backend):
    shapes = {(3, 4): (3,), (2, 3, 1, 5, 4): (2, 3, 5)}
    xs = [pt.tensor(shape=(None,) * len(shape[:-1]) + shape[-1:], dtype="float32") for shape in shapes]
    positions = [pt.tensor(shape=(None,) * len(shape), dtype="int32") for shape in shapes.values()]
    compiled = compile_for([*xs, *positions], [*map(rotary_embedding, xs, positions)], backend)
    arrays = [random(14, *shape, dtype="float32") for shape in shapes]
    rng = np.random.default_rng(15)
    ids = [rng.integers(0, 1000, shape).astype("int32") for shape in shapes.values()]
    for x, given, got in zip(arrays, ids, compiled(*arrays, *ids), strict=True):
        assert got.shape == x.shape
        rows = np.broadcast_to(given, (*x.shape[:-3], x.shape[-2]))
        for at in np.ndindex(x.shape[:-3]):
            assert_rotated(got[at], x[at], rows[at], ROUNDING["float32"])


@pytest.mark.parametrize("head_dim", [8, 6])
def test_head_dim_that_no_type_tells(backend, head_dim):
    positions = np.array([0, 1, 2, 4097, 2**24 + 1, -7], dtype="int32")
    x = random(16, 2, 3, 6, head_dim, dtype="float32")
    ways, compiled = rotations_of_unknown_heads(backend)
    for (name, how), got in zip(ways.items(), compiled(x, positions), strict=True):
        assert got.shape == x.shape, name
        assert_rotated(got, x, positions, ROUNDING["float32"], **how)


def test_odd_head_dim_that_no_type_tells_is_refused(backend):
    _, compiled = rotations_of_unknown_heads(backend)
    with pytest.raises((ValueError, AssertionError), match="must be even"):
        compiled(np.ones((2, 3, 6, 7), "float32"), np.arange(6, dtype="int32"))


def test_head_dim_of_the_layer_stands_in_for_the_type():
    x = pt.tensor(shape=(None, None, None, None), dtype="float32")
    rotated = RotaryEmbedding(head_dim=8)(x, np.arange(3))
    angles = [a.owner.op for a in ancestors([rotated]) if a.owner and isinstance(a.owner.op, Angles)]
    assert {op.rotary_dim for op in angles} == {8}


def test_gradients_against_finite_differences(backend):
    x, probe = random(17, 2, 1, 3, 8), random(18, 2, 1, 3, 8)
    positions = np.array([[0.5, 1.0, 7.25], [-2.0, 3.0, 12.0]])
    outputs = gradients(backend)(x, probe, positions)
    tolerance = 3e-6 if backend == "mlx" else 1e-8
    for (name, how), gx, gp in zip(ROTATIONS.items(), outputs[::2], outputs[1::2], strict=True):
        for row in range(2):

            def cost(x, p, row=row, how=how):
                return (uncached_rotation(x, p, **how) * probe[row]).sum()

            of_x = reference.numeric_gradient(lambda x, row=row: cost(x, positions[row]), x[row])
            of_positions = reference.numeric_gradient(lambda p, row=row: cost(x[row], p), positions[row])
            np.testing.assert_allclose(gx[row], of_x, atol=tolerance, err_msg=name)
            np.testing.assert_allclose(gp[row], of_positions, atol=tolerance, err_msg=name)


def uncached_rotation(x, positions, pairing, rotary_dim=8, **scheme):
    """Rotate in NumPy, for positions that differ at every call."""
    theta = [float(reference.inverse_frequency(i, rotary_dim, **scheme)) for i in range(rotary_dim // 2)]
    c, s = np.cos(np.outer(positions, theta)), np.sin(np.outer(positions, theta))
    half = rotary_dim // 2
    a = np.arange(half) if pairing == "half" else 2 * np.arange(half)
    b = a + half if pairing == "half" else a + 1
    out = x.copy()
    out[..., a], out[..., b] = x[..., a] * c - x[..., b] * s, x[..., b] * c + x[..., a] * s
    return out


def test_gradient_has_the_dtype_of_x(backend, dtype):
    x = pt.tensor("x", shape=(None, None, None, 8), dtype=dtype)
    positions = pt.tensor("positions", shape=(None, None), dtype="int32")
    ways = {name: ROTATIONS[name] for name in ("half", "adjacent of 4")}
    costs = [rotary_embedding(x, positions, **library_names(how)).sum() for how in ways.values()]
    outputs = [pt.grad(cost, x) for cost in costs]
    assert [out.type.dtype for out in outputs] == [dtype] * len(outputs)
    compiled = compile_for([x, positions], outputs, backend)
    args = np.ones((2, 3, 1, 8), dtype), np.array([[1], [2]], "int32")
    assert dtypes_at_run_time(compiled, *args) == [dtype] * len(outputs)
    ones = np.ones((3, 1, 8))
    for how, got in zip(ways.values(), compiled(*args), strict=True):
        # The opposite rotation of ones.
        assert_rotated(got[1], ones, [-2], rounding(backend, dtype), **how)


def test_building_a_float32_layer_makes_no_float64():
    with pytensor.config.change_flags(warn_float64="raise"):
        x = pt.tensor("x", shape=(None, None, None, 8), dtype="float32")
        positions = pt.tensor("positions", shape=(None,), dtype="int64")
        outputs = [rotary_embedding(x, positions, **library_names(how)) for how in ROTATIONS.values()]
    float64 = [
        variable
        for variable in ancestors(outputs)
        if variable.type.dtype == "float64" and not isinstance(variable, Constant)
    ]
    assert float64 == []


def test_batched_calls_are_one_call_of_the_same_ops(backend):
    x = pt.tensor("x", shape=(None, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    rotated = rotary_embedding(x, positions)
    xs = pt.tensor("xs", shape=(None, None, None, 8), dtype="float32")
    rows = pt.tensor("rows", shape=(None, None), dtype="int64")
    outputs = [
        vectorize_graph(rotated, {x: xs}),
        vectorize_graph(rotated, {positions: rows}),
        vectorize_graph(rotated, {x: xs, positions: rows}),
    ]
    ops = {type(v.owner.op) for v in ancestors(outputs) if v.owner is not None}
    assert {Rotate, Angles} <= ops
    compiled = compile_for([xs, x, rows, positions], outputs, backend)
    batch, one = random(19, 2, 3, 5, 8, dtype="float32"), random(20, 3, 5, 8, dtype="float32")
    ids = np.array([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])
    by_x, by_positions, by_both = compiled(batch, one, ids, ids[1])
    assert by_positions.shape == (2, 3, 5, 8)
    for row in range(2):
        assert_rotated(by_x[row], batch[row], ids[1], ROUNDING["float32"])
        assert_rotated(by_positions[row], one, ids[row], ROUNDING["float32"])
        assert_rotated(by_both[row], batch[row], ids[row], ROUNDING["float32"])


def test_angles_are_computed_once_for_all_layers(backend):
    q = pt.tensor("q", shape=(1, 4, None, 8), dtype="float32")
    k = pt.tensor("k", shape=(1, 2, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int32")
    layers = [RotaryEmbedding(f"layer_{i}", head_dim=8) for i in range(2)]
    outputs = [layer(x, positions) for layer in layers for x in (q, k)]
    nodes = compile_for([q, k, positions], outputs, backend).compiled.maker.fgraph.apply_nodes
    # C has a kernel in the place of each op.
    names = [type(node.op).__name__.removesuffix("Kernel") for node in nodes]
    assert (names.count("Angles"), names.count("Rotate")) == (1, 2)


def test_layers_of_different_bases_do_not_share_angles(backend):
    x = pt.tensor("x", shape=(None, None, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    bases = (10_000.0, 500_000.0)
    outputs = [RotaryEmbedding(base=base)(x, positions) for base in bases]
    value = random(21, 1, 1, 5, 8, dtype="float32")
    for base, got in zip(bases, compile_for([x, positions], outputs, backend)(value, range(5)), strict=True):
        assert_rotated(got, value, range(5), ROUNDING["float32"], base=base)


def test_pickled_graph_rotates_the_same(backend):
    x = pt.tensor("x", shape=(None, None, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    graph = [x, positions], [rotary_embedding(x, positions, **library_names(ROTATIONS["ntk"]))]
    value, ids = random(22, 1, 1, 3, 8, dtype="float32"), [0, 1, 2]
    for inputs, outputs in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        (got,) = compile_for(inputs, outputs, backend)(value, ids)
        assert_rotated(got, value, ids, ROUNDING["float32"], **ROTATIONS["ntk"])


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
def test_props_are_plain_values_and_survive_pickling(number):
    layer = RotaryEmbedding(
        head_dim=np.int64(8),
        rotary_dim=np.int32(4),
        base=number(10_000),
        scaling="linear",
        scaling_factor=number(4),
    )
    rotated = layer(pt.tensor(shape=(None, None, None, 8), dtype="float32"), np.arange(3))
    ops = [v.owner.op for v in ancestors([rotated]) if v.owner and isinstance(v.owner.op, Angles | Rotate)]
    assert len(ops) > 1
    for op in ops:
        props = {name: getattr(op, name) for name in op.__props__}
        assert types_within(props.values()) <= {int, float, str, bool, type(None)}, props
        copied = pickle.loads(pickle.dumps(op))
        assert copied == op
        assert hash(copied) == hash(op)
        assert {name: getattr(copied, name) for name in op.__props__} == props


def test_layer_and_function_build_the_same_graph(backend):
    x = pt.tensor("x", shape=(None, None, None, 8), dtype="float32")
    positions = pt.tensor("positions", shape=(None,), dtype="int64")
    layer = RotaryEmbedding("rotary", head_dim=8, base=5e5, pairing="adjacent", rotary_dim=4)
    by_layer = layer(x, positions)
    by_function = rotary_embedding(x, positions, base=5e5, pairing="adjacent", rotary_dim=4)
    assert by_layer.name == "rotary_output"
    value = random(23, 1, 2, 3, 8, dtype="float32")
    first, second = compile_for([x, positions], [by_layer, by_function], backend)(value, [1, 2, 3])
    np.testing.assert_array_equal(first, second)
    assert_rotated(first, value, [1, 2, 3], ROUNDING["float32"], pairing="adjacent", rotary_dim=4, base=5e5)


def test_positions_may_come_from_a_shape(backend):
    x = pt.tensor("x", shape=(1, 1, 3, 8), dtype="float32")
    value = random(24, 1, 1, 3, 8, dtype="float32")
    got = compile_for([x], rotary_embedding(x, pt.arange(x.shape[2])), backend)(value)
    assert_rotated(got, value, [0, 1, 2], ROUNDING["float32"])


def test_odd_head_with_an_even_part_rotated(backend):
    x = pt.tensor("x", shape=(1, 1, 2, 65), dtype="float32")
    rotated = RotaryEmbedding(head_dim=65, rotary_dim=64)(x, np.array([3, 4]))
    value = random(25, 1, 1, 2, 65, dtype="float32")
    got = compile_for([x], rotated, backend)(value)
    assert_rotated(got, value, [3, 4], ROUNDING["float32"], rotary_dim=64)
    np.testing.assert_array_equal(got[..., 64], value[..., 64])


def x_of(*shape, dtype="float32"):
    return pt.tensor("x", shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"head_dim": 65}, ValueError, "head_dim must be even.*got 65"),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 2; got 0"),
        ({"head_dim": 8.0}, TypeError, r"head_dim must be an integer; got 8\.0"),
        ({"rotary_dim": 3}, ValueError, "rotary_dim must be even.*got 3"),
        ({"rotary_dim": 8.0}, TypeError, r"rotary_dim must be an integer; got 8\.0"),
        ({"head_dim": 8, "rotary_dim": 10}, ValueError, "rotary_dim=10 is larger than head_dim=8"),
        ({"pairing": "interleaved"}, ValueError, "pairing must be one of half, adjacent; got 'interleaved'"),
        ({"scaling": "su"}, ValueError, "scaling must be one of none, linear, ntk or a scheme.*got 'su'"),
        ({"scaling_factor": 2.0}, ValueError, r"scaling_factor=2\.0 has no effect"),
        ({"base": -1.0}, ValueError, r"base must be positive and finite; got -1\.0"),
        ({"name": 64}, TypeError, r"name must be a string; got 64.*RotaryEmbedding\(head_dim=64\)"),
    ],
)
def test_refused_hyper_parameters(arguments, error, message):
    with pytest.raises(error, match=message):
        RotaryEmbedding(**arguments)


@pytest.mark.parametrize(
    ("settings", "x", "position_ids", "error", "message"),
    [
        ({}, x_of(1, 1, 3, 7), np.arange(3), ValueError, "head_dim must be even.*got 7"),
        ({"head_dim": 8}, x_of(1, 1, 3, 6), np.arange(3), ValueError, "head_dim=8, but .* last axis is 6"),
        ({"rotary_dim": 8}, x_of(1, 1, 3, 6), np.arange(3), ValueError, "rotary_dim=8 .* has only 6"),
        ({}, x_of(1, 1, 3, 8, dtype="int64"), np.arange(3), TypeError, "x must be a float16.*got int64"),
        ({}, x_of(1, 1, 3, 8, dtype="complex64"), np.arange(3), TypeError, "x must be .*got complex64"),
        ({}, x_of(8), np.arange(3), ValueError, r"x must be \(\.\.\., n_head, seq, head_dim\); got 1 dim"),
        ({}, x_of(2, 1, 3, 8), np.zeros((2, 1, 3), int), ValueError, "position_ids must be .*got 3"),
        ({}, x_of(2, 1, 3, 8), np.int64(3), ValueError, "position_ids must be .*got 0"),
        ({}, x_of(2, 1, 3, 8), np.zeros(3, bool), TypeError, "position_ids must be integers .*got bool"),
        ({}, x_of(2, 1, 3, 8), np.zeros(3, "complex64"), TypeError, "position_ids must be .*got complex64"),
        ({}, x_of(2, 1, 3, 8), np.arange(4), ValueError, "x has 3 tokens .* position_ids has 4"),
        ({}, x_of(2, 1, 3, 8), np.arange(1), ValueError, "x has 3 tokens .* position_ids has 1"),
        ({}, x_of(2, 1, 3, 8), np.zeros((3, 3), int), ValueError, r"batch axes \(3,\), but x has \(2,\)"),
    ],
)
def test_refused_inputs(settings, x, position_ids, error, message):
    with pytest.raises(error, match=message):
        RotaryEmbedding(**settings)(x, position_ids)


def test_refused_number_of_inputs():
    with pytest.raises(TypeError, match="takes x and position_ids; got 1 inputs"):
        RotaryEmbedding("rotary")(x_of(1, 1, 3, 8))


def test_positions_that_do_not_fit_are_refused_when_they_come(backend):
    compiled = rotations(backend, "float32").compiled
    with pytest.raises((ValueError, TypeError, AssertionError)):
        compiled(np.ones((1, 1, 3, 8), "float32"), np.arange(2))


def test_one_position_for_many_tokens_is_refused_when_it_comes(backend):
    compiled = rotations(backend, "float32").compiled
    with pytest.raises((ValueError, TypeError, AssertionError)):
        compiled(np.ones((1, 1, 3, 8), "float32"), np.arange(1))


def test_shapes_that_clash_only_at_run_time_are_refused(backend):
    """JAX and MLX would broadcast them, silently."""
    x, position_ids = pt.tensor3("x", dtype="float32"), pt.lvector("position_ids")
    ones = np.ones((1, 3, 8), "float32")
    layer = RotaryEmbedding(head_dim=4)
    with pytest.raises(Exception, match=r"(?s)."):
        compile_for([x, position_ids], layer(x, position_ids), backend)(ones, np.arange(3))
    partial = rotary_embedding(x, position_ids, rotary_dim=4)
    with pytest.raises(Exception, match=r"(?s)."):
        compile_for([x, position_ids], partial, backend)(ones[..., :3], np.arange(3))
