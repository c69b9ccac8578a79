"""``pytensor-rope info``: what a model is, and what its cache takes."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytensor_rope.cli.display import in_mebibytes, print_table
from pytensor_rope.cli.sources import read_config

if TYPE_CHECKING:
    from pytensor_rope import DecoderConfig
    from pytensor_rope.frequencies import FrequencyScheme

_SCHEMES = ("scaling", "sliding_scaling")


def info(options: argparse.Namespace) -> int:
    """
    Print a model's configuration.

    Parameters
    ----------
    options : argparse.Namespace
        The arguments of ``pytensor-rope info``.

    Returns
    -------
    code : int
        0.
    """
    config = read_config(options.model)
    if options.json:
        print(json.dumps(_as_json(config, options), indent=2))
    else:
        print_table(_as_rows(config, options))
    return 0


def parameter_count(config: DecoderConfig) -> int:
    """Return the number of weights of a decoder."""
    from pytensor_rope.weights import weight_shapes

    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def cache_bytes(config: DecoderConfig, sinks: int, window: int) -> int:
    """Return the bytes of one row's keys and values in float32; a layer may have a window of its own."""
    from pytensor_rope.cache import SinkCache
    from pytensor_rope.decoder import cache_within

    windows = Counter(config.window(layer) for layer in range(config.n_layer))
    return sum(
        count * cache_within(SinkCache(sinks, window), own).nbytes(1, config.n_kv_head, config.head_dim)
        for own, count in windows.items()
    )


def _as_json(config: DecoderConfig, options: argparse.Namespace) -> dict[str, object]:
    described: dict[str, Any] = asdict(config)
    for name in _SCHEMES:
        scheme = getattr(config, name)
        described[name] = None if scheme is None else _scheme_as_json(scheme)
    return {
        "model": options.model,
        "config": described,
        "parameters": parameter_count(config),
        "cache": {
            "sinks": options.sinks,
            "window": options.window,
            "slots": options.sinks + options.window,
            "bytes": cache_bytes(config, options.sinks, options.window),
        },
    }


def _scheme_as_json(scheme: FrequencyScheme) -> dict[str, object]:
    return {"scheme": type(scheme).__name__, **asdict(scheme)}


def _as_rows(config: DecoderConfig, options: argparse.Namespace) -> list[tuple[str, str]]:
    return [
        ("model", options.model),
        ("parameters", f"{parameter_count(config):,}"),
        ("layers", f"{config.n_layer:,}{_kinds_of_layers(config)}"),
        ("query heads", f"{config.n_head:,}"),
        ("key/value heads", f"{config.n_kv_head:,}"),
        ("head width", f"{config.head_dim:,}"),
        ("hidden width", f"{config.hidden_size:,}"),
        ("feed-forward width", f"{config.intermediate_size:,}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("output head", "the token embedding" if config.tied else "its own"),
        ("context", f"{config.context_length:,}"),
        *_rope_rows(config),
        ("norm epsilon", f"{config.epsilon:g}"),
        ("cache", _cache(config, options)),
    ]


def _kinds_of_layers(config: DecoderConfig) -> str:
    """Say how many layers see how much, and how many don't rotate, where they differ from Llama's."""
    windows = Counter(config.window(layer) for layer in range(config.n_layer))
    unrotated = sum(config.rotary(layer) is None for layer in range(config.n_layer))
    kinds = [
        f"{count:,} see " + ("everything" if window is None else f"the last {window:,} tokens")
        for window, count in windows.items()
        if windows.keys() != {None}
    ]
    kinds += [f"{unrotated:,} without rope"] if unrotated else []
    return f": {', '.join(kinds)}" if kinds else ""


def _rope_rows(config: DecoderConfig) -> list[tuple[str, str]]:
    rotary_dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    rows = [("rope base", f"{config.base:,.10g}"), ("rope scaling", _shortened(config.scaling))]
    if config.sliding_base is not None:
        rows.append(("sliding rope base", f"{config.sliding_base:,.10g}"))
    if config.sliding_scaling is not None:
        rows.append(("sliding rope scaling", _shortened(config.sliding_scaling)))
    return [*rows, ("rope pairing", f"{config.pairing}, {rotary_dim:,} of {config.head_dim:,} rotated")]


def _shortened(scheme: FrequencyScheme) -> str:
    return textwrap.shorten(str(scheme), 90, placeholder=" ...")


def _cache(config: DecoderConfig, options: argparse.Namespace) -> str:
    slots = options.sinks + options.window
    own = {config.window(layer) for layer in range(config.n_layer)} - {None}
    shorter = any(window is not None and window <= slots for window in own)
    return (
        f"{in_mebibytes(cache_bytes(config, options.sinks, options.window))} in float32 for {slots:,} slots "
        f"({options.sinks:,} sinks and a window of {options.window:,})"
        + ("; layers with a shorter window of their own keep that" if shorter else "")
    )
