"""``pytensor-rope score``: how well a model predicts a text."""

from __future__ import annotations

import argparse
import json
import math

import numpy as np

from pytensor_rope.cli.arguments import DEFAULT_SINKS, DEFAULT_WINDOW, POSITIONS
from pytensor_rope.cli.sources import STANDARD_INPUT, compiling, open_model, read_text


def score(options: argparse.Namespace) -> int:
    """
    Print the perplexity of a text.

    Parameters
    ----------
    options : argparse.Namespace
        The arguments of ``pytensor-rope score``.

    Returns
    -------
    code : int
        0.
    """
    _refuse_dense_with_cache(options)
    text = read_text(options.file)
    source = "standard input" if options.file == STANDARD_INPUT else options.file
    if not text:
        raise ValueError(f"{source} is empty.")
    model = open_model(options.model, options.dtype)
    token_ids = model.tokenizer.encode(text)[: options.limit]
    if len(token_ids) < 2:
        raise ValueError(f"{source} is too short to score: it takes 2 tokens, and has {len(token_ids)}.")

    sinks, window, positions = _cache_geometry(options, len(token_ids))
    stream = model.compile(options.backend, sinks=sinks, window=window, positions=positions)
    with compiling(options.backend, f"scoring {len(token_ids):,} tokens"):
        nll = np.asarray(stream.score(token_ids), dtype=np.float64)
    _print_result(nll, as_json=options.json)
    return 0


def _refuse_dense_with_cache(options: argparse.Namespace) -> None:
    for name in ("sinks", "window", "positions"):
        if options.dense and getattr(options, name) is not None:
            raise ValueError(f"--dense keeps every token, so it can't go with --{name}.")


def _cache_geometry(options: argparse.Namespace, n_token: int) -> tuple[int, int, str]:
    """Return sinks, window and positions; a dense text is one that fits its window."""
    if options.dense:
        return 0, n_token, POSITIONS[0]
    return (
        DEFAULT_SINKS if options.sinks is None else options.sinks,
        DEFAULT_WINDOW if options.window is None else options.window,
        POSITIONS[0] if options.positions is None else options.positions,
    )


def _print_result(nll: np.ndarray, *, as_json: bool) -> None:
    """Print the mean of the negative log-likelihoods, in nats, and its exponential."""
    mean = float(nll.mean())
    result = {"perplexity": _exp(mean), "mean_nll": mean, "tokens": nll.size}
    if as_json:
        print(json.dumps(result))
        return
    print(f"perplexity  {result['perplexity']:.4f}")
    print(f"mean nll    {mean:.6f} nats a token")
    print(f"tokens      {nll.size:,} predicted of {nll.size + 1:,}")


def _exp(exponent: float) -> float:
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf
