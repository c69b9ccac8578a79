"""
Put attention into a PyMC model, and sample it.

A daily series follows what it was a week ago. The model is not told so: one head of attention looks back
over the last days, and its query, a random variable, says which of them to look at. Rotary positions make
that a matter of the distance alone, so the posterior of the query is one of how far to look back. Run as a
script, it samples this model and two autoregressions, and compares how well they predict days they have not
seen:

    python examples/pymc_attention.py
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pytensor_rope as rope

LAG = 7
WINDOW = 10
HEAD_DIM = 8
# Wavelengths from 6 to 35 days: together they tell any day of the window from the others.
ROTARY = rope.RotaryEmbedding(head_dim=HEAD_DIM, base=10.0)
CACHE = rope.SinkCache(sinks=0, window=WINDOW)


def simulate(days: int, seed: int) -> np.ndarray:
    """Return a series in which each day follows the one a week before it."""
    rng = np.random.default_rng(seed)
    values = list(rng.normal(0, 1.4, LAG))
    while len(values) < days:
        values.append(0.9 * values[-LAG] + rng.normal(0, 0.6))
    return np.array(values)


def attend(query: Any, values: Any) -> Any:
    """
    Return for each day what attention makes of the last ``WINDOW`` days, that day among them.

    ``query (HEAD_DIM,)`` and ``values (days,)`` may be random variables. All keys are the same: nothing but
    their positions tells one day from another.
    """
    heads = pt.ones((1, 1, values.shape[0], HEAD_DIM))
    empty = CACHE.initial_state(batch=1, n_kv_head=1, head_dim=HEAD_DIM, dtype="float64")
    attended, _ = CACHE.attend(heads * query, heads, heads * values[:, None], empty, rotary=ROTARY)
    return attended[0, 0, :, 0]


def attention_model(values: np.ndarray, observed: int) -> pm.Model:
    """Return the model that predicts each day from what attention makes of those before it."""
    with pm.Model() as model:
        direction = pm.Normal("direction", shape=HEAD_DIM)
        sharpness = pm.Gamma("sharpness", alpha=4, beta=0.5)
        # RMSNorm leaves of a query its direction; how sharply it looks is a variable of its own.
        query = pm.Deterministic("query", rope.rms_norm(direction, sharpness * pt.ones(HEAD_DIM)))
        strength = pm.HalfNormal("strength", sigma=1)
        predict(lambda past: strength * attend(query, pt.constant(past)), values, observed)
    return model


def autoregression(values: np.ndarray, observed: int, lags: int) -> pm.Model:
    """Return the model that predicts each day as a weighted sum of the last ``lags``."""

    def mean(past: np.ndarray) -> Any:
        padded = np.concatenate([np.zeros(lags - 1), past])
        return np.lib.stride_tricks.sliding_window_view(padded, lags) @ strength

    with pm.Model() as model:
        strength = pm.Normal("strength", sigma=1, shape=lags)
        predict(mean, values, observed)
    return model


def predict(mean: Callable[[np.ndarray], Any], values: np.ndarray, observed: int) -> None:
    """
    Add what all models have in common: a noise, and the first ``observed`` days as they were.

    ``mean`` predicts from some days the days that follow each of them.
    """
    noise = pm.HalfNormal("noise", sigma=1)
    pm.Normal("day", mean(values[: observed - 1]), noise, observed=values[1:observed])
    pm.Deterministic("mean", mean(values[:-1]))


def held_out_density(posterior: Any, values: np.ndarray, observed: int) -> float:
    """Return the mean log predictive density of the days that were not observed, each given those before."""
    means, noises = (posterior[name].stack(at=("chain", "draw")).to_numpy() for name in ("mean", "noise"))
    density = pm.logp(pm.Normal.dist(means[observed - 1 :], noises), values[observed:, None]).eval()
    return float(np.mean(np.logaddexp.reduce(density, axis=1) - np.log(density.shape[1])))


def attention_by_lag(posterior: Any, backend: str) -> np.ndarray:
    """Return how much of the attention, in the posterior's mean, goes to each day before the predicted."""
    query = pt.matrix("query", shape=(None, HEAD_DIM))
    turned = ROTARY(query[:, None, None, :], [WINDOW - 1])[:, 0]
    keys = ROTARY(np.ones((1, WINDOW, HEAD_DIM)), np.arange(WINDOW))[0]
    scores = turned[:, 0] @ keys.T / np.sqrt(HEAD_DIM)
    draws = posterior["query"].to_numpy().reshape(-1, HEAD_DIM)
    weights = rope.function([query], pt.special.softmax(scores, axis=1), backend=backend)(draws)
    return weights.mean(axis=0)[::-1]


def main(
    days: int = 200,
    observed: int = 130,
    draws: int = 500,
    tune: int = 500,
    chains: int = 4,
    backend: str = "numba",
    seed: int = 0,
) -> dict[str, float]:
    """Sample the models, print what they make of the series, and return their held-out densities."""
    values = simulate(days, seed)
    models: dict[str, Callable[[], pm.Model]] = {
        "attention": lambda: attention_model(values, observed),
        "yesterday": lambda: autoregression(values, observed, lags=1),
        f"{WINDOW} days": lambda: autoregression(values, observed, lags=WINDOW),
    }
    densities = {}
    for name, build in models.items():
        started = time.perf_counter()
        with build():
            # The attention's posterior bends sharply where the query is short: small steps follow it.
            result = pm.sample(
                draws,
                tune=tune,
                chains=chains,
                cores=1,
                backend=backend,
                target_accept=0.95,
                random_seed=seed,
                progressbar=False,
            )
        posterior, diverging = result["posterior"], int(result["sample_stats"]["diverging"].sum())
        densities[name] = held_out_density(posterior, values, observed)
        print(f"\n{name}: sampled in {time.perf_counter() - started:.0f} s, {diverging} divergences")
        shown = [variable for variable in posterior if variable not in ("mean", "query")]
        print(az.summary(posterior, var_names=shown).to_string())
        if name == "attention":
            shares = " ".join(f"{share:.2f}" for share in attention_by_lag(posterior, backend))
            print(f"attention to each of the last {WINDOW} days, yesterday first: {shares}")
    print(f"\nmean log predictive density of the {days - observed} days not seen")
    for name, density in densities.items():
        print(f"{name:10} {density:6.3f}")
    return densities


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, default in (("--days", 200), ("--observed", 130), ("--draws", 500), ("--tune", 500)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--backend", choices=("c", "numba", "jax"), default="numba")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
