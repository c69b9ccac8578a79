"""Frequency schemes against their definitions and against values from others' bug reports."""

import copy
import itertools
import json
import math
import pickle

import frequency_reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytensor_rope import frequencies
from pytensor_rope.frequencies import (
    NTK,
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
    scheme_from_plain,
)

EXAMPLES = {
    "default": Default(),
    "linear": Linear(factor=4.0),
    "ntk": NTK(factor=2.0),
    "dynamic": DynamicNTK(factor=2.0, original_max_position_embeddings=4096),
    "yarn": YaRN(
        factor=40.0,
        original_max_position_embeddings=4096,
        mscale=0.707,
        mscale_all_dim=0.707,
        truncate=False,
        softmax_correction=True,
    ),
    "llama3": Llama3(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
    "factors": FrequencyFactors(factors=[1.0, 1.5, 2.0, 4.0], attention_factor=1.25),
    "longrope": LongRoPE(
        short_factor=[1.0, 1.1, 1.2, 1.3],
        long_factor=[1.0, 2.0, 4.0, 8.0],
        original_max_position_embeddings=4096,
        factor=32.0,
    ),
    "proportional": Proportional(partial_rotary_factor=0.5, factor=8.0),
    "mrope": MRoPE(section=[2, 1, 1], interleaved=True, scaling=Linear(factor=2.0)),
    "axial": Axial(alternate=True),
    "xpos": XPos(scale_base=256.0),
}
LLAMA32 = Llama3(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
LLAMA31 = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
GPT_OSS = {"factor": 32.0, "original_max_position_embeddings": 4096}

every_scheme = pytest.mark.parametrize("scheme", EXAMPLES.values(), ids=EXAMPLES)


def defined(d, base=10_000.0, name="default", **values):
    """Return what the scheme is by its definition, rounded to float64."""
    return [float(theta) for theta in frequency_reference.table(d, base, name, **values)]


def yarn_magnitude(factor, mscale=1.0):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def interleaved_axes(section):
    """Return each pair's axis: time everywhere but at 1, 4, 7, … below 3h and at 2, 5, 8, … below 3w."""
    height, width = range(1, 3 * section[1], 3), range(2, 3 * section[2], 3)
    return [1 if i in height else 2 if i in width else 0 for i in range(sum(section))]


# Against the definitions


def test_every_scheme_has_an_example():
    assert {type(scheme).__name__ for scheme in EXAMPLES.values()} == set(frequencies.SCHEMES)


@pytest.mark.parametrize("d", [4, 8, 64, 128])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 5e5, 1e7])
@pytest.mark.parametrize(
    ("scheme", "name", "values"),
    [
        (Default(), "default", {}),
        (XPos(), "default", {}),
        (Linear(factor=3.0), "linear", {"factor": 3.0}),
        (NTK(factor=0.3), "ntk", {"factor": 0.3}),
        (NTK(factor=8.0), "ntk", {"factor": 8.0}),
        (YaRN(**GPT_OSS), "yarn", {"factor": 32.0, "original": 4096}),
        (YaRN(**GPT_OSS, truncate=False), "yarn", {"factor": 32.0, "original": 4096, "truncate": False}),
        (
            YaRN(factor=4.0, original_max_position_embeddings=100, beta_fast=16.0, beta_slow=0.5),
            "yarn",
            {"factor": 4.0, "original": 100, "beta_fast": 16.0, "beta_slow": 0.5},
        ),
        (
            YaRN(factor=4.0, original_max_position_embeddings=10**9, beta_fast=8.0, beta_slow=8.0),
            "yarn",
            {"factor": 4.0, "original": 10**9, "beta_fast": 8.0, "beta_slow": 8.0},
        ),
        (LLAMA32, "llama3", {"factor": 32, "low": 1, "high": 4, "original": 8192}),
        (Proportional(partial_rotary_factor=0.3), "proportional", {"part": 0.3}),
        (Proportional(partial_rotary_factor=1, factor=8.0), "proportional", {"part": 1, "factor": 8.0}),
        (Axial(), "axial", {}),
        (Axial(alternate=True), "axial", {"alternate": True}),
    ],
)
def test_each_inverse_frequency_is_correctly_rounded(scheme, name, values, d, base):
    found = scheme.inverse_frequencies(d, base=base)
    assert found.dtype == "float64"
    assert found.tolist() == defined(d, base, name, **values)


@pytest.mark.parametrize("length", [1, 4096, 4097, 8192, 10**7])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_dynamic_ntk_at_a_length(length, factor):
    scheme = DynamicNTK(factor=factor, original_max_position_embeddings=4096)
    grown = factor * max(length, 4096) / 4096 - (factor - 1)
    assert scheme.inverse_frequencies(128, length=length).tolist() == defined(128, name="ntk", factor=grown)


def test_partial_rotation_divides_by_the_rotated_dimensions():
    # https://github.com/pie-project/pie/issues/602: theta ** (-2i / head_dim) in place of rotary_dim.
    theta = Default().inverse_frequencies(4)
    assert theta.tolist() == [1.0, 0.01]
    x = np.arange(1.0, 9.0)
    cos, sin = np.cos(theta), np.sin(theta)
    rotated = [*(x[:2] * cos - x[2:4] * sin), *(x[2:4] * cos + x[:2] * sin), *x[4:]]
    np.testing.assert_allclose(rotated, [-1.984111, 1.959901, 2.462378, 4.0198, 5, 6, 7, 8], atol=1e-6)


# Values from reports


def test_llama_3_2_1b():
    # https://github.com/huggingface/transformers/pull/32330: computed, but the unscaled ones returned.
    found = LLAMA32.inverse_frequencies(64, base=500_000.0)
    unscaled = Default().inverse_frequencies(64, base=500_000.0)
    assert found[:15].tolist() == unscaled[:15].tolist()
    np.testing.assert_allclose(found[18:], unscaled[18:] / 32, rtol=1e-15)
    expected = {
        14: 3.21144599475e-3,
        15: 1.29054792821e-3,
        16: 4.29556796559e-4,
        17: 9.70828780263e-5,
        18: 1.94616381848e-5,
        31: 9.41830672543e-8,
    }
    np.testing.assert_allclose(found[list(expected)], list(expected.values()), rtol=1e-11)
    assert LLAMA32.attention_scaling == 1


def test_llama_3_1_8b():
    found = LLAMA31.inverse_frequencies(128, base=500_000.0)
    unscaled = Default().inverse_frequencies(128, base=500_000.0)
    assert found[:29].tolist() == unscaled[:29].tolist()
    assert (found[29:35] < unscaled[29:35]).all()
    np.testing.assert_allclose(found[35:], unscaled[35:] / 8, rtol=1e-15)
    expected = {
        28: 3.21144599475e-3,
        29: 2.16657076350e-3,
        30: 1.37189356776e-3,
        31: 8.56751412920e-4,
        32: 5.24846160993e-4,
        33: 3.12693750384e-4,
        34: 1.78507812768e-4,
        35: 9.55621235396e-5,
        63: 3.06892598891e-7,
    }
    np.testing.assert_allclose(found[list(expected)], list(expected.values()), rtol=1e-11)


@pytest.mark.parametrize(
    ("factor", "length", "base"),
    [
        (2.0, 4096, 10_000),
        (2.0, 4097, 10_004.96034),
        (2.0, 8192, 30_527.73675),
        (2.0, 16_384, 72_195.86009),
        (4.0, 4097, 10_009.92071),
        (4.0, 8192, 51_293.78727),
        (4.0, 16_384, 135_401.97304),
    ],
)
def test_dynamic_ntk_grows_its_base_with_the_length(factor, length, base):
    # https://github.com/huggingface/transformers/issues/27226 and
    # https://github.com/vllm-project/vllm/issues/41236: one base for all lengths, or one that stays.
    scheme = DynamicNTK(factor=factor, original_max_position_embeddings=4096)
    found = scheme.inverse_frequencies(128, length=length)[1] ** (-128 / 2)
    np.testing.assert_allclose(found, base, rtol=1e-9)


def test_dynamic_ntk_remembers_nothing():
    scheme = DynamicNTK(factor=2.0, original_max_position_embeddings=4096)
    long = scheme.inverse_frequencies(128, length=8192)
    short = scheme.inverse_frequencies(128, length=10)
    assert short.tolist() == Default().inverse_frequencies(128).tolist() != long.tolist()


def test_dynamic_ntk_is_not_linear():
    # https://github.com/lablup/mlxcel/issues/1324: internlm3's factor of 6 fell to a linear 2.
    scheme = DynamicNTK(factor=6.0, original_max_position_embeddings=32_768)
    assert scheme.at(1) == scheme.at(32_768) == Default()


def test_static_ntk_leaves_the_fastest_pair():
    found = NTK(factor=2.0).inverse_frequencies(128)
    assert found[0] == 1
    np.testing.assert_allclose(found[1] ** (-128 / 2), 20_221.261689738, rtol=1e-11)


@pytest.mark.parametrize(
    ("truncate", "expected"),
    [
        (True, [5.08132748155e-2, 3.16207522753e-2, 7.01571391050e-3, 2.27947795795e-4, 3.83088123738e-5]),
        (False, [5.08132748155e-2, 3.17056961847e-2, 6.79495948973e-3, 1.29318701245e-4, 3.83088123738e-5]),
    ],
)
def test_yarn_rounds_its_range_or_not(truncate, expected):
    # https://github.com/vllm-project/vllm/issues/27722: gpt-oss says truncate: false.
    scheme = YaRN(**GPT_OSS, truncate=truncate)
    found = scheme.inverse_frequencies(64, base=150_000.0)[[8, 9, 12, 17, 18]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(scheme.attention_scaling, 1.3465735902799727, rtol=1e-15)


@pytest.mark.parametrize("d", [64, 128])
def test_yarn_bounds_its_range_by_all_dimensions(d):
    # KerasHub's bound was d / 2 - 1: 31 for a raw 34.55.
    scheme = YaRN(factor=4.0, original_max_position_embeddings=131_072, truncate=False)
    found = scheme.inverse_frequencies(d)
    assert found.tolist() == defined(d, name="yarn", factor=4.0, original=131_072, truncate=False)
    assert found[-1] > Default().inverse_frequencies(d)[-1] / 4


@pytest.mark.parametrize(("mscale", "all_dim"), list(itertools.product([None, 0, 0.707, 1], repeat=2)))
@pytest.mark.parametrize("factor", [0.5, 1.0, 16.0])
def test_yarn_magnitude(mscale, all_dim, factor):
    # https://github.com/vllm-project/vllm/issues/48621: mscale ignored.
    scheme = YaRN(factor=factor, original_max_position_embeddings=4096, mscale=mscale, mscale_all_dim=all_dim)
    expected = yarn_magnitude(factor)
    if mscale and all_dim:
        expected = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
    np.testing.assert_allclose(scheme.attention_scaling, expected, rtol=1e-15)
    assert scheme.softmax_scaling == 1


def test_yarn_magnitudes_cancel():
    both = YaRN(factor=16.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)
    neither = YaRN(factor=16.0, original_max_position_embeddings=4096)
    assert both.attention_scaling == 1
    np.testing.assert_allclose(neither.attention_scaling, 1.2772588722239782, rtol=1e-15)


@pytest.mark.parametrize("all_dim", [None, 0, 0.707, 1.0])
@pytest.mark.parametrize("correction", [False, True])
def test_deepseek_corrects_the_softmax_scale(all_dim, correction):
    scheme = YaRN(
        factor=40.0,
        original_max_position_embeddings=4096,
        mscale=all_dim,
        mscale_all_dim=all_dim,
        softmax_correction=correction,
    )
    expected = yarn_magnitude(40.0, all_dim) ** 2 if all_dim and correction else 1.0
    np.testing.assert_allclose(scheme.softmax_scaling, expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("factor", "given", "expected"),
    [
        (128.0, None, 1.4852030263919617),
        (128.0, 1.0, 1.0),
        (128.0, 0.5, 0.5),
        (128.0, 1.4852030264, 1.4852030264),
        (8.0, None, 1.2079441541679836),
    ],
)
def test_an_explicit_attention_factor_replaces_the_magnitude(factor, given, expected):
    # https://github.com/ml-explore/mlx-lm/pull/1507: multiplied in, 2.2058280296 in place of 1.4852030264.
    scheme = YaRN(
        factor=factor,
        original_max_position_embeddings=8192,
        attention_factor=given,
        mscale=None if given is None else 1.0,
        mscale_all_dim=None if given is None else 0.5,
    )
    np.testing.assert_allclose(scheme.attention_scaling, expected, rtol=1e-15)


def test_yarn_divides_by_its_own_factor():
    # https://github.com/huggingface/transformers/issues/38224: by 32768 / 4096 in place of 4.
    found = YaRN(factor=4.0, original_max_position_embeddings=4096).inverse_frequencies(128)
    np.testing.assert_allclose(found[-1], Default().inverse_frequencies(128)[-1] / 4, rtol=1e-15)


def test_yarn_range_goes_from_fast_to_slow():
    # https://github.com/pytorch/torchtitan/pull/3787: the betas swapped.
    found = YaRN(factor=4.0, original_max_position_embeddings=4096).inverse_frequencies(128)
    plain = Default().inverse_frequencies(128)
    assert found[0] == plain[0]
    assert found[-1] < plain[-1]
    with pytest.raises(ValueError, match="Are they swapped"):
        YaRN(factor=4.0, original_max_position_embeddings=4096, beta_fast=1.0, beta_slow=32.0)


def test_longrope_changes_after_the_original_length():
    # https://github.com/unslothai/unsloth/pull/10681: long factors at exactly the original length.
    short, long = [1.0 + i / 48 for i in range(48)], [1.0 + i for i in range(48)]
    scheme = LongRoPE(
        short_factor=short, long_factor=long, original_max_position_embeddings=4096, factor=131_072 / 4096
    )
    for length, factors in [(1, short), (4095, short), (4096, short), (4097, long), (131_072, long)]:
        found = scheme.inverse_frequencies(96, length=length)
        assert found.tolist() == defined(96, name="factors", factors=factors)
        np.testing.assert_allclose(scheme.at(length).attention_scaling, 1.1902380714238083, rtol=1e-15)
    np.testing.assert_allclose(scheme.attention_scaling, 1.1902380714238083, rtol=1e-15)


@pytest.mark.parametrize(("factor", "given", "expected"), [(1.0, None, 1), (0.5, None, 1), (32.0, 1.5, 1.5)])
def test_longrope_magnitude(factor, given, expected):
    scheme = LongRoPE(
        short_factor=[1],
        long_factor=[2],
        original_max_position_embeddings=4096,
        factor=factor,
        attention_factor=given,
    )
    assert scheme.attention_scaling == expected


def test_chunked_axes():
    scheme = MRoPE(section=[2, 1, 1])
    angles = np.array([5, 3, 2])[list(scheme.axes(8))] * scheme.inverse_frequencies(8)
    np.testing.assert_allclose(angles, [5, 0.5, 0.03, 0.002], rtol=1e-15)


@pytest.mark.parametrize("section", [(2, 1, 1), (24, 20, 20), (11, 11, 10), (22, 22, 20), (1, 1, 1)])
def test_interleaved_axes(section):
    # https://github.com/huggingface/transformers/issues/42084: Qwen3-VL's order is not Qwen2-VL's.
    scheme = MRoPE(section=section, interleaved=True)
    assert list(scheme.axes(2 * sum(section))) == interleaved_axes(section)


def test_equal_positions_turn_as_one_axis_does():
    for interleaved in (False, True):
        scheme = MRoPE(section=[16, 24, 24], interleaved=interleaved, scaling=Linear(factor=2.0))
        assert (
            scheme.inverse_frequencies(128).tolist() == Linear(factor=2.0).inverse_frequencies(128).tolist()
        )
        assert scheme.sequential == Linear(factor=2.0)


def test_mrope_has_the_magnitudes_of_its_scaling():
    scheme = MRoPE(section=[16, 24, 24], scaling=EXAMPLES["yarn"])
    assert scheme.attention_scaling == EXAMPLES["yarn"].attention_scaling
    assert scheme.softmax_scaling == EXAMPLES["yarn"].softmax_scaling > 1


def test_axial_axes():
    for alternate in (False, True):
        assert Axial(alternate=alternate).axes(8) == (0, 0, 1, 1)
        assert Axial(alternate=alternate).n_axis == 2
    with pytest.raises(ValueError, match="rows and columns"):
        _ = Axial().sequential


def test_xpos_decay():
    expected = [math.log((2 * i + 0.4 * 8) / (1.4 * 8)) / 512 for i in range(4)]
    np.testing.assert_allclose(XPos().log_decay(8), expected, rtol=1e-15)


# As values


@every_scheme
def test_prints_as_the_code_that_makes_it(scheme):
    assert eval(repr(scheme), vars(frequencies)) == scheme


@every_scheme
def test_is_what_its_values_are(scheme):
    twin = copy.deepcopy(scheme)
    assert twin == scheme
    assert hash(twin) == hash(scheme)
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert scheme != EXAMPLES["linear" if type(scheme) is not Linear else "ntk"]
    assert scheme_from_plain(scheme.plain()) == scheme
    assert scheme_from_plain(json.loads(json.dumps(scheme.plain()))) == scheme


@every_scheme
def test_frequencies_survive_a_copy(scheme):
    # https://github.com/huggingface/transformers/issues/45902: the buffer lost, and 6.9e-18 in its place.
    again = pickle.loads(pickle.dumps(scheme))
    found = again.inverse_frequencies(8, length=8192)
    assert found.tolist() == scheme.inverse_frequencies(8, length=8192).tolist()
    assert found[0] in (1.0, 1 / 2, 1 / 4, 1 / 8)


@every_scheme
def test_is_frozen(scheme):
    with pytest.raises(AttributeError):
        scheme.factor = 3.0


def test_different_values_are_different_schemes():
    assert Linear(factor=2) == Linear(factor=2.0) != Linear(factor=3.0)
    assert Linear(factor=2.0) != NTK(factor=2.0)
    assert len({Linear(factor=2), Linear(factor=2.0), Linear(factor=3.0), NTK(factor=2.0)}) == 3
    assert FrequencyFactors(factors=np.array([1, 2])) == FrequencyFactors(factors=(1.0, 2.0))


@every_scheme
def test_chosen_at_a_length_it_stays(scheme):
    chosen = scheme.at(8192)
    assert not chosen.depends_on_length
    expected = scheme.inverse_frequencies(8, length=8192)
    assert chosen.inverse_frequencies(8).tolist() == expected.tolist()
    assert chosen.inverse_frequencies(8, length=1).tolist() == expected.tolist()
    assert chosen.attention_scaling == scheme.attention_scaling


# What is refused

ORIGINAL = {"original_max_position_embeddings": 4096}
LONG = {"short_factor": [1, 1], "long_factor": [1, 2], **ORIGINAL}
BLEND = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}


@pytest.mark.parametrize(
    ("scheme", "values", "error", "message"),
    [
        (Linear, {"factor": 0.0}, ValueError, "factor must be positive and finite; got 0.0"),
        (
            FrequencyFactors,
            {"factors": [1.0], "attention_factor": None},
            TypeError,
            "attention_factor must be a number; got None",
        ),
        (FrequencyFactors, {"factors": {1.0, 2.0}}, TypeError, "one factor a pair of dimensions; got {1.0"),
        (MRoPE, {"section": {1, 2}}, TypeError, "one number of pairs an axis; got {1, 2}"),
        (
            DynamicNTK,
            {"factor": 2.0, "original_max_position_embeddings": 2**63},
            ValueError,
            "original_max_position_embeddings must be below",
        ),
        (Linear, {"factor": math.inf}, ValueError, "factor must be positive and finite"),
        (Linear, {"factor": "2"}, TypeError, "factor must be a number; got '2'"),
        (Linear, {"factor": True}, TypeError, "factor must be a number; got True"),
        (NTK, {"factor": -1.0}, ValueError, "factor must be positive"),
        (DynamicNTK, {"factor": 0.5, **ORIGINAL}, ValueError, "factor must be at least 1; got 0.5"),
        (DynamicNTK, {"factor": 2.0, "original_max_position_embeddings": 0}, ValueError, "at least 1; got 0"),
        (
            DynamicNTK,
            {"factor": 2.0, "original_max_position_embeddings": 2.0},
            TypeError,
            "must be an integer",
        ),
        (YaRN, {"factor": math.nan, **ORIGINAL}, ValueError, "factor must be positive and finite; got nan"),
        (YaRN, {"factor": 4.0, **ORIGINAL, "beta_fast": 0.0}, ValueError, "beta_fast must be positive"),
        (YaRN, {"factor": 4.0, **ORIGINAL, "mscale": math.inf}, ValueError, "mscale must be finite"),
        (
            YaRN,
            {"factor": 4.0, **ORIGINAL, "mscale_all_dim": -1.0},
            ValueError,
            "mscale_all_dim must be at least",
        ),
        (
            YaRN,
            {"factor": 4.0, **ORIGINAL, "attention_factor": 0.0},
            ValueError,
            "attention_factor must be pos",
        ),
        (
            YaRN,
            {"factor": 4.0, **ORIGINAL, "truncate": 0},
            TypeError,
            "truncate must be True or False; got 0",
        ),
        (
            YaRN,
            {"factor": 4.0, **ORIGINAL, "softmax_correction": None},
            TypeError,
            "softmax_correction must be",
        ),
        (Llama3, BLEND | {"low_freq_factor": 4.0}, ValueError, "below high_freq_factor; got 4.0 and 4.0"),
        (Llama3, BLEND | {"factor": 0}, ValueError, "factor must be positive"),
        (FrequencyFactors, {"factors": [1.0, 0.0]}, ValueError, "A factor in factors must be positive"),
        (FrequencyFactors, {"factors": "12"}, TypeError, "one factor a pair of dimensions; got '12'"),
        (FrequencyFactors, {"factors": 2.0}, TypeError, "one factor a pair of dimensions; got 2.0"),
        (LongRoPE, LONG | {"short_factor": [1]}, ValueError, "equally long; got 1 and 2 factors"),
        (LongRoPE, LONG | {"long_factor": [1, -2]}, ValueError, "A factor in long_factor must be positive"),
        (LongRoPE, LONG | {"factor": -2.0}, ValueError, "factor must be positive"),
        (
            LongRoPE,
            LONG | {"original_max_position_embeddings": 1, "factor": 2.0},
            ValueError,
            "above 1 for an attention factor to be derived",
        ),
        (Proportional, {"partial_rotary_factor": 1.5}, ValueError, "at most 1; got 1.5"),
        (Proportional, {"partial_rotary_factor": 0}, ValueError, "partial_rotary_factor must be positive"),
        (MRoPE, {"section": [4]}, ValueError, "at least 2 axes; got 1"),
        (MRoPE, {"section": [2, -1, 3]}, ValueError, "at least 0; got -1"),
        (MRoPE, {"section": [2.0, 1, 1]}, TypeError, "must be an integer; got 2.0"),
        (MRoPE, {"section": 4}, TypeError, "one number of pairs an axis; got 4"),
        (MRoPE, {"section": [2, 1, 1], "interleaved": 1}, TypeError, "interleaved must be True or False"),
        (MRoPE, {"section": [2, 1, 1], "scaling": "linear"}, TypeError, "must be a frequency scheme"),
        (MRoPE, {"section": [2, 1, 1], "scaling": XPos()}, ValueError, "stays the same at every length"),
        (MRoPE, {"section": [2, 1, 1], "scaling": Axial()}, ValueError, "scheme of one axis"),
        (MRoPE, {"section": [2, 1, 1], "scaling": EXAMPLES["dynamic"]}, ValueError, "at every length"),
        (Axial, {"alternate": "yes"}, TypeError, "alternate must be True or False"),
        (XPos, {"scale_base": 0}, ValueError, "scale_base must be positive"),
        (XPos, {"scale_base": 5e-324}, ValueError, "scale_base must be at least 1, a distance; got 5e-324"),
    ],
)
def test_refused_values(scheme, values, error, message):
    with pytest.raises(error, match=message):
        scheme(**values)


@pytest.mark.parametrize(
    ("scheme", "d", "base", "error", "message"),
    [
        (Default(), 65, 10_000.0, ValueError, "rotary_dim must be even, .*; got 65"),
        (Default(), 0, 10_000.0, ValueError, "rotary_dim must be at least 2; got 0"),
        (Default(), 8.0, 10_000.0, TypeError, "rotary_dim must be an integer"),
        (Default(), 8, 0.0, ValueError, "base must be positive"),
        (Default(), 8, [10_000.0], TypeError, "base must be a number"),
        (NTK(factor=2.0), 2, 10_000.0, ValueError, "NTK needs a rotary_dim above 2"),
        (EXAMPLES["dynamic"], 2, 10_000.0, ValueError, "DynamicNTK needs a rotary_dim above 2"),
        (EXAMPLES["yarn"], 8, 1.0, ValueError, "base other than 1"),
        (EXAMPLES["factors"], 16, 10_000.0, ValueError, "factors must have one factor a pair, .* = 8; got 4"),
        (EXAMPLES["longrope"], 16, 10_000.0, ValueError, "short_factor must have one factor a pair"),
        (MRoPE(section=[16, 24, 24]), 8, 10_000.0, ValueError, "add up to rotary_dim // 2 = 4 .* up to 64"),
        (MRoPE(section=[1, 1, 2]), 10, 10_000.0, ValueError, "add up to rotary_dim // 2 = 5"),
        (MRoPE(section=[3, 0, 1], interleaved=True), 8, 10_000.0, None, ""),
        (MRoPE(section=[1, 1, 0], interleaved=True), 4, 10_000.0, None, ""),
        (MRoPE(section=[0, 1, 1], interleaved=True), 4, 10_000.0, ValueError, "can't be interleaved"),
        (Axial(), 6, 10_000.0, ValueError, "divisible by 4"),
    ],
)
def test_refused_dimensions_and_bases(scheme, d, base, error, message):
    if error is None:
        scheme.inverse_frequencies(d, base=base)
        return
    with pytest.raises(error, match=message):
        scheme.inverse_frequencies(d, base=base, length=10)


def test_a_wrong_base_is_refused_after_a_right_one():
    assert Default().inverse_frequencies(4, base=1).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="base must be a number; got True"):
        Default().inverse_frequencies(4, base=True)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_scheme_that_changes_needs_a_length(name):
    with pytest.raises(ValueError, match="depend on the length of the sequence: pass length"):
        EXAMPLES[name].inverse_frequencies(8)
    with pytest.raises(ValueError, match="length must be at least 1; got 0"):
        EXAMPLES[name].inverse_frequencies(8, length=0)


def test_a_length_beyond_every_float_is_refused():
    with pytest.raises(ValueError, match="length must be positive and finite"):
        EXAMPLES["dynamic"].inverse_frequencies(8, length=10**400)


def test_no_frequency_is_shared():
    found = Default().inverse_frequencies(8)
    found[0] = 7
    assert Default().inverse_frequencies(8)[0] == 1


# Properties

factors = st.floats(1, 64)
dims = st.integers(2, 32).map(lambda half: 2 * half)
bases = st.floats(10, 1e8)
lengths = st.integers(1, 10**6)


@given(factors, st.integers(1, 10**5), lengths, dims, bases)
def test_dynamic_ntk_is_plain_up_to_the_original_length(factor, original, length, d, base):
    scheme = DynamicNTK(factor=factor, original_max_position_embeddings=original)
    found = scheme.inverse_frequencies(d, base=base, length=length)
    plain = Default().inverse_frequencies(d, base=base)
    assert (found == plain).all() if length <= original else (found[1:] < plain[1:]).all()
    assert found[0] == 1


@given(factors, st.integers(1, 10**5), lengths, lengths, dims)
def test_dynamic_ntk_slows_with_the_length(factor, original, one, other, d):
    scheme = DynamicNTK(factor=factor, original_max_position_embeddings=original)
    shorter, longer = sorted((one, other))
    assert (
        scheme.inverse_frequencies(d, length=longer) <= scheme.inverse_frequencies(d, length=shorter)
    ).all()


@given(st.integers(1, 10**5), lengths, st.lists(factors, min_size=4, max_size=4))
def test_longrope_switches_strictly_after_the_original_length(original, length, long):
    scheme = LongRoPE(
        short_factor=[1] * 4,
        long_factor=long,
        original_max_position_embeddings=original,
        attention_factor=1.0,
    )
    expected = FrequencyFactors(factors=long if length > original else [1] * 4, attention_factor=1.0)
    assert scheme.at(length) == expected


@given(factors, st.integers(7, 10**6), dims, bases, st.booleans())
def test_yarn_is_between_stretched_and_plain(factor, original, d, base, truncate):
    scheme = YaRN(factor=factor, original_max_position_embeddings=original, truncate=truncate)
    found = scheme.inverse_frequencies(d, base=base)
    plain = Default().inverse_frequencies(d, base=base)
    assert (found <= plain).all()
    assert (found >= np.nextafter(plain / factor, 0)).all()
    assert (np.diff(found) < 0).all()


@given(factors, st.floats(0.1, 4), st.floats(0.1, 60), st.integers(1, 10**6), dims, bases)
def test_llama3_is_between_stretched_and_plain(factor, low, width, original, d, base):
    scheme = Llama3(
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=low + width,
        original_max_position_embeddings=original,
    )
    found = scheme.inverse_frequencies(d, base=base)
    plain = Default().inverse_frequencies(d, base=base)
    turns = original * plain / (2 * np.pi)
    assert (found <= plain).all()
    assert (found >= np.nextafter(plain / factor, 0)).all()
    assert (found[turns > (low + width) * (1 + 1e-9)] == plain[turns > (low + width) * (1 + 1e-9)]).all()
    assert (np.diff(found) < 0).all()


@given(factors, dims, bases)
def test_ntk_stretches_the_slowest_pair_by_the_factor(factor, d, base):
    found = NTK(factor=factor).inverse_frequencies(d, base=base)
    plain = Default().inverse_frequencies(d, base=base)
    assert found[0] == 1
    np.testing.assert_allclose(found[-1], plain[-1] / factor, rtol=1e-14)


@given(st.floats(0.01, 1), dims)
def test_proportional_turns_a_first_part(part, d):
    found = Proportional(partial_rotary_factor=part).inverse_frequencies(d)
    turning = int(part * d // 2)
    assert found[:turning].tolist() == Default().inverse_frequencies(d)[:turning].tolist()
    assert not found[turning:].any()


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(sum))
def test_chunked_axes_are_as_many_as_their_sections(section):
    axes = MRoPE(section=section).axes(2 * sum(section))
    assert [axes.count(axis) for axis in range(3)] == section
    assert list(axes) == sorted(axes)


@given(st.integers(0, 5), st.integers(1, 20))
def test_interleaved_axes_are_as_many_as_equal_sections(more, n):
    section = [n + more, n, n]
    axes = MRoPE(section=section, interleaved=True).axes(2 * sum(section))
    assert [axes.count(axis) for axis in range(3)] == section


def test_frequencies_that_no_float_holds_are_refused():
    with pytest.raises(ValueError, match="gives frequencies that no float64 holds"):
        Linear(factor=5e-324).inverse_frequencies(8)
