"""RMSNorm: its values in every dtype, the order of its casts, and its gradients."""

import copy
import pickle
from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import reference
from conftest import compile_for, dtypes_at_run_time, random
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors

from pytensor_rope import RMSNorm, rms_norm
from pytensor_rope.norm import RMSNormalize

ROUNDING = {"float16": 2.0**-10, "float32": 4e-7, "float64": 1e-15}

# What each output of `norms` is.
NORMS = {
    "plain": {},
    "epsilon 1e-5": {"epsilon": 1e-5},
    "epsilon 1e-8": {"epsilon": 1e-8},
    "weighted": {"weighted": True},
    "unit offset": {"weighted": True, "unit_offset": True},
}


@cache
def norms(backend, dtype):
    """Normalise ``x (rows, n)``, scaled by ``weight (n,)`` where that is asked for."""
    x = pt.tensor("x", shape=(None, None), dtype=dtype)
    weight = pt.tensor("weight", shape=(None,), dtype=dtype)
    outputs = []
    for how in NORMS.values():
        settings = dict(how)
        given = [weight] if settings.pop("weighted", False) else []
        outputs.append(rms_norm(x, *given, **settings))
    assert all(out.type.dtype == dtype for out in outputs)
    compiled = compile_for([x, weight], outputs, backend)

    def normalize(x, weight=None):
        x = np.asarray(x, dtype=dtype)
        weight = np.ones(x.shape[-1], dtype) if weight is None else np.asarray(weight, dtype=dtype)
        return dict(zip(NORMS, compiled(x, weight), strict=True))

    normalize.compiled = compiled
    return normalize


@cache
def gradients(backend, dtype, epsilon=1e-6):
    """Gradients of a weighted sum of the normalised values, for x and for the weight."""
    x, probe = (pt.tensor(name, shape=(None, None), dtype=dtype) for name in ("x", "probe"))
    weight = pt.tensor("weight", shape=(None,), dtype=dtype)
    plain = rms_norm(x, epsilon=epsilon)
    llama = rms_norm(x, weight, epsilon=epsilon)
    gemma = rms_norm(x, weight, epsilon=epsilon, unit_offset=True)
    outputs = [
        pt.grad((plain * probe).sum(dtype=dtype), x),
        *pt.grad((llama * probe).sum(dtype=dtype), [x, weight]),
        *pt.grad((gemma * probe).sum(dtype=dtype), [x, weight]),
    ]
    assert [out.type.dtype for out in outputs] == [dtype] * 5
    return compile_for([x, weight, probe], outputs, backend)


def test_every_norm_against_the_reference(backend, dtype):
    x, weight = random(0, 5, 12, dtype=dtype), random(1, 12, dtype=dtype)
    got = norms(backend, dtype)(x, weight)
    w = np.float64(weight)
    expected = {
        "plain": reference.rms_norm(x),
        "epsilon 1e-5": reference.rms_norm(x, epsilon=1e-5),
        "epsilon 1e-8": reference.rms_norm(x, epsilon=1e-8),
        "weighted": reference.rms_norm(x, w),
        "unit offset": reference.rms_norm(x, 1 + w),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(np.float64(got[name]), value, rtol=2 * ROUNDING[dtype], err_msg=name)


def test_dtype_in_is_dtype_out_at_run_time(backend, dtype):
    compiled = norms(backend, dtype).compiled
    assert dtypes_at_run_time(compiled, np.ones((2, 4), dtype), np.ones(4, dtype)) == [dtype] * len(NORMS)


def test_squares_that_overflow_float16(float16_backend):
    x = np.array([[1000, -1000] * 8, [65504, -65504] * 8], dtype="float16")
    for name in ("plain", "epsilon 1e-5", "epsilon 1e-8", "weighted"):
        got = norms(float16_backend, "float16")(x)[name]
        np.testing.assert_array_equal(got, [[1, -1] * 8] * 2, err_msg=name)


def test_squares_and_epsilons_that_underflow_in_float16(float16_backend):
    # In float16 the squares would be 0, and so would be an epsilon of 1e-8.
    x = (1e-4 * random(2, 4, 16)).astype("float16")
    got = norms(float16_backend, "float16")(x)
    for name, epsilon in {"plain": 1e-6, "epsilon 1e-8": 1e-8}.items():
        expected = reference.rms_norm(x, epsilon=epsilon)
        np.testing.assert_allclose(got[name], expected, rtol=2**-10, atol=1e-7, err_msg=name)


def test_epsilon_is_not_scaled_by_a_large_value(backend, dtype):
    x = np.array([[1000.0] + [0.1] * 1023])
    got = np.float64(norms(backend, dtype)(x)["epsilon 1e-5"])
    expected = reference.rms_norm(x.astype(dtype), epsilon=1e-5)
    # A float32 sum that runs from the first to the last loses every 0.01 beside 1e6: 5e-6 in all.
    tolerance = {"float16": ROUNDING["float16"], "float32": 6e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(got, expected, rtol=tolerance)


def test_llama_casts_before_the_weight(float16_backend):
    # Powers of two and small integers: the mean square and its root are exact in any order of summing.
    x = np.array([[3, 5, 1, 1, 7, 3, 1, 1]], dtype="float16") / 2
    x[0, -1] = np.float16(3.5)
    weight = random(3, 8, dtype="float16")
    mean_square = (np.float32(x) ** 2).mean(dtype="float32") + np.float32(1e-6)
    normalized = (np.float32(x) * (np.float32(1) / np.sqrt(mean_square))).astype("float16")
    got = norms(float16_backend, "float16")(x, weight)["weighted"]
    np.testing.assert_array_equal(got, weight * normalized)
    cast_last = (reference.rms_norm(x) * np.float64(weight)).astype("float16")
    assert (cast_last != weight * normalized).any()


def test_gemma_adds_one_before_the_cast(float16_backend):
    # 1 + 1/4096 is 1 in float16; in float32 it is not.
    x = np.array([[1.0, -1.0, 3.0, 5.0]], dtype="float16")
    weight = np.array([15.8125, 2.0**-12, -(2.0**-12), 0.0], dtype="float16")
    got = norms(float16_backend, "float16")(x, weight)
    expected = (reference.rms_norm(x) * (1 + np.float64(weight))).astype("float16")
    np.testing.assert_array_equal(got["unit offset"], expected)
    plain = got["plain"]
    assert expected[0, 0] == np.float16(16.8125 * reference.rms_norm(x)[0, 0])
    assert expected[0, 0] != np.float16(16.8125) * plain[0, 0] or expected[0, 1] != plain[0, 1]
    assert (got["weighted"] != got["unit offset"]).any()


def test_gemma_at_weight_15_8125(backend, dtype):
    # With x of one magnitude the normalised value is 1: what is left is 1 + weight, 16.8125.
    x = np.full((1, 8), 1024.0, dtype=dtype)
    got = norms(backend, dtype)(x, np.full(8, 15.8125))
    tolerance = 2e-6 if dtype == "float32" else 2e-12
    np.testing.assert_allclose(np.float64(got["unit offset"]), 16.8125, rtol=tolerance)
    np.testing.assert_allclose(np.float64(got["weighted"]), 15.8125, rtol=tolerance)


def test_gemma_of_weight_zero_is_no_scale(backend, dtype):
    x = random(4, 3, 8, dtype=dtype)
    got = norms(backend, dtype)(x, np.zeros(8))
    np.testing.assert_array_equal(got["unit offset"], got["plain"])


def test_row_of_zeros_gives_zeros(backend, dtype):
    for name, got in norms(backend, dtype)(np.zeros((2, 8))).items():
        np.testing.assert_array_equal(got, 0, err_msg=name)


@pytest.mark.parametrize("unit_offset", [False, True])
def test_gradients_against_finite_differences(backend, unit_offset):
    x, weight, probe = random(5, 3, 6), random(6, 6), random(7, 3, 6)
    of_plain, *weighted = gradients(backend, "float64")(x, weight, probe)
    gx, gw = weighted[2:] if unit_offset else weighted[:2]
    scale = 1.0 if unit_offset else 0.0

    def cost(x, w):
        return (reference.rms_norm(x, scale + w) * probe).sum()

    np.testing.assert_allclose(gx, reference.numeric_gradient(lambda x: cost(x, weight), x), atol=1e-8)
    np.testing.assert_allclose(gw, reference.numeric_gradient(lambda w: cost(x, w), weight), atol=1e-8)
    plain = reference.numeric_gradient(lambda x: (reference.rms_norm(x) * probe).sum(), x)
    np.testing.assert_allclose(of_plain, plain, atol=1e-8)


def test_gradients_have_the_input_s_dtype_at_run_time(backend, dtype):
    args = random(8, 2, 6, dtype=dtype), random(9, 6, dtype=dtype), random(10, 2, 6, dtype=dtype)
    compiled = gradients(backend, dtype)
    assert dtypes_at_run_time(compiled, *args) == [dtype] * 5
    in_float64 = gradients(backend, "float64")(*(np.float64(arg) for arg in args))
    for got, expected in zip(compiled(*args), in_float64, strict=True):
        np.testing.assert_allclose(np.float64(got), expected, rtol=0, atol=16 * ROUNDING[dtype])


def test_row_of_zeros_has_a_finite_gradient(backend, dtype):
    compiled = gradients(backend, dtype)
    n = 6
    of_plain, llama_x, llama_w, gemma_x, gemma_w = compiled(
        np.zeros((2, n), dtype), np.full(n, 2, dtype), np.ones((2, n), dtype)
    )
    # The derivative at 0 is 1 / sqrt(epsilon) = 1000.
    tolerance = 2 * ROUNDING[dtype] if dtype != "float64" else 1e-12
    np.testing.assert_allclose(np.float64(of_plain), 1000, rtol=tolerance)
    np.testing.assert_allclose(np.float64(llama_x), 2000, rtol=tolerance)
    np.testing.assert_allclose(np.float64(gemma_x), 3000, rtol=tolerance)
    np.testing.assert_array_equal(llama_w, 0)
    np.testing.assert_array_equal(gemma_w, 0)


def test_row_of_zeros_with_the_smallest_epsilons(backend):
    n = 6
    outputs = gradients(backend, "float32", 1e-30)(
        np.zeros((2, n), "float32"), np.ones(n, "float32"), np.ones((2, n), "float32")
    )
    for got, expected in zip(outputs, (1e15, 1e15, 0, 2e15, 0), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_building_a_float32_layer_makes_no_float64():
    with pytensor.config.change_flags(warn_float64="raise"):
        x = pt.tensor("x", shape=(None, 8), dtype="float32")
        weight = pt.tensor("weight", shape=(8,), dtype="float32")
        outputs = [rms_norm(x), rms_norm(x, weight), rms_norm(x, weight, unit_offset=True)]
    assert {v.type.dtype for v in ancestors(outputs)} == {"float32"}


def test_weight_of_another_dtype_does_not_change_x_s(backend):
    x = pt.tensor("x", shape=(None, 8), dtype="float32")
    weight = pt.tensor("weight", shape=(8,), dtype="float64")
    outputs = [rms_norm(x, weight), rms_norm(x, weight, unit_offset=True)]
    outputs += pt.grad(sum(out.sum(dtype="float32") for out in outputs), [x, weight])
    dtypes = ["float32"] * 3 + ["float64"]
    assert [out.type.dtype for out in outputs] == dtypes
    compiled = compile_for([x, weight], outputs, backend)
    args = random(11, 2, 8, dtype="float32"), random(12, 8)
    assert dtypes_at_run_time(compiled, *args) == dtypes
    llama, gemma, *_ = compiled(*args)
    np.testing.assert_allclose(llama, reference.rms_norm(*args), rtol=1e-6)
    np.testing.assert_allclose(gemma, reference.rms_norm(args[0], 1 + args[1]), rtol=2e-6, atol=1e-7)


def test_batched_calls(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float32")
    weight = pt.tensor("weight", shape=(None,), dtype="float32")
    normalized = rms_norm(x, weight)
    xs = pt.tensor("xs", shape=(None, None, None), dtype="float32")
    weights = pt.tensor("weights", shape=(None, None), dtype="float32")
    outputs = [
        vectorize_graph(normalized, {x: xs}),
        vectorize_graph(normalized, {weight: weights}),
        vectorize_graph(normalized, {x: xs, weight: weights}),
    ]
    assert RMSNormalize in {type(v.owner.op) for v in ancestors(outputs[:1]) if v.owner is not None}
    args = [random(i, *shape, dtype="float32") for i, shape in enumerate([(2, 5), (5,), (3, 2, 5), (3, 5)])]
    one, w, batch, ws = args
    by_x, by_weight, by_both = compile_for([x, weight, xs, weights], outputs, backend)(*args)
    for row in range(3):
        np.testing.assert_allclose(by_x[row], reference.rms_norm(batch[row], w), rtol=1e-6)
        np.testing.assert_allclose(by_weight[row], reference.rms_norm(one, ws[row]), rtol=1e-6)
        np.testing.assert_allclose(by_both[row], reference.rms_norm(batch[row], ws[row]), rtol=1e-6)


def test_batched_gradients(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float64")
    weight = pt.tensor("weight", shape=(None,), dtype="float64")
    gradients = pt.grad((rms_norm(x, weight) ** 2).sum(), [x, weight])
    xs = pt.tensor("xs", shape=(None, None, None), dtype="float64")
    compiled = compile_for([xs, weight], vectorize_graph(gradients, {x: xs}), backend)
    one_by_one = compile_for([x, weight], gradients, backend)
    batch, w = random(13, 3, 2, 5), random(14, 5)
    gx, gw = compiled(batch, w)
    for row in range(3):
        for got, expected in zip((gx[row], gw[row]), one_by_one(batch[row], w), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-12)


def test_gradient_of_a_batched_weight(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float64")
    weight = pt.tensor("weight", shape=(None,), dtype="float64")
    weights = pt.tensor("weights", shape=(None, None), dtype="float64")
    batched = vectorize_graph(rms_norm(x, weight), {weight: weights})
    outputs = pt.grad((batched**2).sum(), [x, weights])
    one, ws = random(15, 2, 5), random(16, 3, 5)
    gx, gw = compile_for([x, weights], outputs, backend)(one, ws)

    def cost(x, ws):
        return sum((reference.rms_norm(x, w) ** 2).sum() for w in ws)

    np.testing.assert_allclose(gx, reference.numeric_gradient(lambda x: cost(x, ws), one), atol=1e-7)
    np.testing.assert_allclose(gw, reference.numeric_gradient(lambda w: cost(one, w), ws), atol=1e-7)


def test_pickled_graph_normalizes_the_same(backend):
    x = pt.tensor("x", shape=(None, None), dtype="float32")
    graph = [x], [rms_norm(x, epsilon=1e-5)]
    value = random(17, 2, 8, dtype="float32")
    for inputs, outputs in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        (got,) = compile_for(inputs, outputs, backend)(value)
        np.testing.assert_allclose(got, reference.rms_norm(value, epsilon=1e-5), rtol=1e-6)


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
def test_props_are_plain_values_and_survive_pickling(number):
    out = RMSNorm(n_in=np.int64(8), epsilon=number(1e-5), unit_offset=np.bool_(True))(pt.matrix(shape=(2, 8)))
    op = out.owner.op
    props = {name: getattr(op, name) for name in op.__props__}
    assert {name: type(value) for name, value in props.items()} == {"epsilon": float, "unit_offset": bool}
    copied = pickle.loads(pickle.dumps(op))
    assert copied == op
    assert {name: getattr(copied, name) for name in op.__props__} == props


def test_layer_names_its_weight_and_its_output():
    norm = RMSNorm("attention_norm", n_in=8)
    assert norm.weight.name == "attention_norm_weight"
    assert norm.weight.type.shape == (8,)
    assert norm.weight.dtype == pytensor.config.floatX
    np.testing.assert_array_equal(norm.weight.get_value(), np.ones(8))
    assert norm(pt.tensor(shape=(2, 8), dtype="float32")).name == "attention_norm_output"
    assert RMSNorm(n_in=4).weight.name == "RMSNorm_weight"


def test_layer_takes_n_in_from_its_first_input_and_keeps_it():
    norm = RMSNorm()
    assert norm.weight is None
    norm(pt.tensor(shape=(None, 8), dtype="float32"))
    weight = norm.weight
    assert (norm.n_in, weight.type.shape) == (8, (8,))
    norm(pt.tensor(shape=(3, None, 8), dtype="float16"))
    norm(pt.tensor(shape=(3, None), dtype="float32"))
    assert norm.weight is weight
    with pytest.raises(ValueError, match="n_in=8, but the input's last axis is 6"):
        norm(pt.tensor(shape=(None, 6), dtype="float32"))


def test_layer_without_a_weight():
    norm = RMSNorm(affine=False)
    out = norm(pt.tensor(shape=(None, None), dtype="float32"))
    assert norm.weight is None
    assert len(out.owner.inputs) == 1


def test_layer_with_unit_offset_starts_at_zero():
    np.testing.assert_array_equal(RMSNorm(n_in=4, unit_offset=True).weight.get_value(), np.zeros(4))


def test_layer_uses_its_weight_and_a_residual(backend):
    x, residual = (pt.tensor(name, shape=(None, 8), dtype="float32") for name in ("x", "residual"))
    norm = RMSNorm("norm", n_in=8, epsilon=1e-5)
    compiled = compile_for([x, residual], [norm(x), norm(x, residual)], backend)
    values = random(18, 3, 8, dtype="float32"), random(19, 3, 8, dtype="float32")
    for weight in (np.ones(8), random(20, 8)):
        norm.weight.set_value(weight)
        alone, added = compiled(*values)
        np.testing.assert_allclose(alone, reference.rms_norm(values[0], weight, 1e-5), rtol=1e-6)
        np.testing.assert_allclose(added, reference.rms_norm(sum(values), weight, 1e-5), rtol=2e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, r"epsilon must be positive and finite; got 0\.0"),
        ({"epsilon": -1e-6}, ValueError, "epsilon must be positive and finite; got -1e-06"),
        ({"epsilon": float("nan")}, ValueError, "epsilon must be positive and finite; got nan"),
        ({"epsilon": float("inf")}, ValueError, "epsilon must be positive and finite; got inf"),
        ({"n_in": 0}, ValueError, "n_in must be at least 1; got 0"),
        ({"n_in": 8.0}, TypeError, r"n_in must be an integer; got 8\.0"),
        ({"n_in": True}, TypeError, "n_in must be an integer; got True"),
        ({"name": 64}, TypeError, r"name must be a string; got 64.*RMSNorm\(n_in=64\)"),
    ],
)
def test_refused_hyper_parameters(arguments, error, message):
    with pytest.raises(error, match=message):
        RMSNorm(**arguments)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_epsilon_that_the_statistics_can_not_hold_is_refused(dtype):
    with pytest.raises(ValueError, match=r"epsilon must be at least 1\.2e-38.*got 1e-50"):
        rms_norm(pt.tensor(shape=(2, 8), dtype=dtype), epsilon=1e-50)
    rms_norm(pt.tensor(shape=(2, 8), dtype="float64"), epsilon=1e-50)


def matrix(dtype="float32", shape=(2, 8)):
    return pt.tensor(shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("x", "weight", "error", "message"),
    [
        (matrix("int64"), None, TypeError, "x must be a float16.*got int64"),
        (matrix("bool"), None, TypeError, "x must be a float16.*got bool"),
        (matrix("complex64"), None, TypeError, "x must be a float16.*got complex64"),
        (matrix(), matrix("int32", (8,)), TypeError, "weight must be a float16.*got int32"),
        (matrix(), matrix(shape=(6,)), ValueError, r"weight must be \(8,\)"),
        (matrix(), matrix(shape=(2, 8)), ValueError, r"weight must be \(8,\)"),
        (matrix(), matrix(shape=(1,)), ValueError, r"weight must be \(8,\)"),
        (matrix(), matrix(shape=()), ValueError, r"weight must be \(8,\)"),
        (matrix(shape=()), None, ValueError, "x must have at least one axis .*; got a scalar"),
    ],
)
def test_refused_inputs(x, weight, error, message):
    with pytest.raises(error, match=message):
        rms_norm(x, weight)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], TypeError, "takes x and optionally a residual; got 0 inputs"),
        ([matrix()] * 3, TypeError, "takes x and optionally a residual; got 3 inputs"),
        ([matrix(), matrix("float64")], ValueError, "residual must have x's dtype and rank"),
        ([matrix(), matrix(shape=(8,))], ValueError, "residual must have x's dtype and rank"),
        ([matrix(), matrix("int64")], TypeError, "residual must be a float16.*got int64"),
        ([matrix(shape=(2, None))], ValueError, "can't take n_in .* Pass n_in"),
    ],
)
def test_refused_layer_inputs(inputs, error, message):
    with pytest.raises(error, match=message):
        RMSNorm()(*inputs)


def test_weight_that_does_not_fit_is_refused_when_it_comes(backend):
    compiled = norms(backend, "float32").compiled
    with pytest.raises((ValueError, TypeError, AssertionError)):
        compiled(np.ones((2, 8), "float32"), np.ones(6, "float32"))


def test_a_weight_of_another_length_is_refused_at_run_time(backend):
    x, weight = pt.matrix("x", dtype="float32"), pt.vector("weight", dtype="float32")
    normalize = compile_for([x, weight], rms_norm(x, weight), backend)
    with pytest.raises(Exception, match=r"(?s)."):
        normalize(np.ones((2, 4), "float32"), np.ones(1, "float32"))
