"""``pytensor-rope check``: whether a model loads and runs here."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from pytensor_rope.cli.display import in_mebibytes, print_table, resident_memory
from pytensor_rope.cli.info import cache_bytes, parameter_count
from pytensor_rope.cli.sources import compiling, open_model

if TYPE_CHECKING:
    from pytensor_rope import Model

_TEXT = "Hello"


def check(options: argparse.Namespace) -> int:
    """
    Load a model, read two tokens one by one, and print what came of it.

    Parameters
    ----------
    options : argparse.Namespace
        The arguments of ``pytensor-rope check``.

    Returns
    -------
    code : int
        0.

    Raises
    ------
    ValueError
        If a logit is not finite.
    """
    start = time.perf_counter()
    model = open_model(options.model, options.dtype)
    loaded = time.perf_counter()
    token_ids, text = _tokens(model)
    stream = model.compile(options.backend, sinks=options.sinks, window=options.window)
    with compiling(options.backend, "running a step"):
        first = _finite(stream.step(token_ids[0]))
    compiled = time.perf_counter()
    logits = _finite(stream.step(token_ids[-1]))
    stepped = time.perf_counter()

    memory = resident_memory()
    report = {
        "model": options.model,
        "parameters": parameter_count(model.config),
        "dtype": str(logits.dtype),
        "tokenizer": text,
        "backend": options.backend,
        "load_seconds": loaded - start,
        "first_step_seconds": compiled - loaded,
        "step_seconds": stepped - compiled,
        "cache_bytes": cache_bytes(model.config, options.sinks, options.window),
        "resident_bytes": memory,
        "largest_logit": float(max(first.max(), logits.max())),
        "likeliest_token": int(logits[0].argmax()),
    }
    if options.json:
        print(json.dumps(report))
    else:
        print_table(_as_rows(report))
    return 0


def _tokens(model: Model) -> tuple[list[int], str]:
    """Return token ids to read, and what the tokenizer makes of a word."""
    from pytensor_rope import CheckpointError

    try:
        tokenizer = model.tokenizer
    except CheckpointError as error:
        return [0], str(error)
    token_ids = tokenizer.encode(_TEXT)
    return token_ids or [0], f"{_TEXT!r} is {token_ids}, and back {tokenizer.decode(token_ids)!r}"


def _finite(logits: Any) -> Any:
    import numpy as np

    if not np.isfinite(logits).all():
        raise ValueError("the model's logits aren't finite.")
    return logits


def _as_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    memory = report["resident_bytes"]
    return [
        ("model", report["model"]),
        ("parameters", f"{report['parameters']:,} in {report['dtype']}"),
        ("loaded", f"in {report['load_seconds']:.1f} s"),
        ("tokenizer", report["tokenizer"]),
        ("first step", f"in {report['first_step_seconds']:.1f} s, compiled for {report['backend']}"),
        ("a step", f"takes {1e3 * report['step_seconds']:.1f} ms"),
        ("logits", f"finite, at most {report['largest_logit']:.2f}; token {report['likeliest_token']} next"),
        ("cache", in_mebibytes(report["cache_bytes"])),
        *([("memory", f"{in_mebibytes(memory)} resident")] if memory is not None else []),
        ("result", "it loads and runs"),
    ]
