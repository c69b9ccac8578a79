"""Sampling: exact sets and probabilities, seeds, noise, and refused arguments."""

import numpy as np
import pytest

from pytensor_rope.sampling import Sampler

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = np.log(PROBABILITIES) + 3.0


def test_greedy_takes_the_first_of_equals():
    token = Sampler()(np.array([1.0, 4.0, -np.inf, 4.0], dtype=np.float32))
    assert token == 1
    assert type(token) is int


def frequencies(sampler, logits, n=40_000):
    return np.bincount([sampler(logits) for _ in range(n)], minlength=len(logits)) / n


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2 / np.sum(PROBABILITIES**2)),
        ({"top_k": 3}, np.array([0, 0.4, 0, 0.25, 0.2]) / 0.85),
        ({"top_p": 0.6}, np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        ({"top_k": 3, "top_p": 0.75}, np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
    ],
)
def test_draws_follow_the_exact_distribution(arguments, expected):
    sampler = Sampler(**{"temperature": 1.0, "seed": 7} | arguments)
    np.testing.assert_allclose(sampler.probabilities(LOGITS), expected, rtol=1e-12)
    drawn = frequencies(sampler, LOGITS)
    # Five standard deviations of a frequency in 40,000 draws are at most 0.0125.
    np.testing.assert_allclose(drawn, expected, atol=0.0125)
    assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(expected))


@pytest.mark.parametrize(("top_k", "kept"), [(1, {1}), (2, {1, 3}), (4, {1, 2, 3, 4}), (9, {*range(5)})])
def test_top_k_keeps_exactly_the_most_probable(top_k, kept):
    probabilities = Sampler(temperature=1.0, top_k=top_k).probabilities(LOGITS)
    assert set(np.flatnonzero(probabilities)) == kept


def test_top_k_keeps_the_smaller_ids_of_equals():
    probabilities = Sampler(temperature=1.0, top_k=2).probabilities(np.zeros(4))
    assert probabilities.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, {1}), (0.39, {1}), (0.41, {1, 3}), (0.86, {1, 2, 3, 4}), (1.0, {*range(5)})],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p, kept):
    probabilities = Sampler(temperature=1.0, top_p=top_p).probabilities(LOGITS)
    assert set(np.flatnonzero(probabilities)) == kept


def test_top_p_of_1_cuts_nothing():
    logits = np.random.default_rng(0).normal(size=50_000)
    assert np.count_nonzero(Sampler(temperature=1.0, top_p=1.0).probabilities(logits)) == 50_000


def test_excluded_tokens_are_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0])
    sampler = Sampler(temperature=1.0, seed=0)
    assert {sampler(logits) for _ in range(200)} == {1, 3}


def test_a_tiny_temperature_is_greedy():
    sampler = Sampler(temperature=5e-324, seed=0)
    assert [sampler(LOGITS) for _ in range(20)] == [1] * 20


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others():
    first, again, other = (
        [sampler(LOGITS) for _ in range(50)]
        for sampler in (Sampler(1.0, seed=3), Sampler(1.0, seed=3), Sampler(1.0, seed=4))
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("arguments", [{}, {"top_k": 40}, {"top_p": 0.9}])
def test_float_noise_in_the_logits_hardly_changes_a_token(arguments):
    # A flat tail of many tokens. Inverting the cumulative distribution differs in more than 10 of
    # these draws in the order of ids, in more than 100 in the order of probability.
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=2.0, size=20_000).astype(np.float32)
    noisy = logits + rng.normal(scale=1e-4, size=20_000).astype(np.float32)
    one, two = Sampler(1.0, seed=5, **arguments), Sampler(1.0, seed=5, **arguments)
    differing = sum(one(logits) != two(noisy) for _ in range(1_000))
    assert differing <= 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", np.nan),
        ("temperature", np.inf),
        ("temperature", "1"),
        ("top_k", 0),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", np.nan),
        ("seed", -1),
        ("seed", 0.5),
    ],
)
def test_arguments_outside_their_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Sampler(**{name: value})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits",
    [
        [0.0, np.nan],
        [0.0, np.inf],
        [-np.inf, -np.inf],
        [],
        [[0.0, 1.0]],
        0.0,
    ],
)
def test_logits_that_no_token_can_be_drawn_from_are_refused(logits, temperature):
    with pytest.raises(ValueError, match=r"^logits must"):
        Sampler(temperature)(np.array(logits))
