"""``pytensor-rope info``: what a model is, and what its cache takes."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytensor_rope.cli.display import in_mebibytes
from pytensor_rope.cli.sources import open_model

if TYPE_CHECKING:
    from pytensor_rope import DecoderConfig
    from pytensor_rope.frequencies import FrequencyScheme

FLOAT32_BYTES = 4


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
    config = open_model(options.model).config
    if options.json:
        print(json.dumps(_as_json(config, options), indent=2))
        return 0
    rows = _as_rows(config, options)
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")
    return 0


def parameter_count(config: DecoderConfig) -> int:
    """Return the number of weights of a decoder."""
    from pytensor_rope.weights import weight_shapes

    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def cache_bytes(config: DecoderConfig, slots: int) -> int:
    """Return the bytes of the keys and values of ``slots`` float32 tokens, for one row."""
    row = config.n_kv_head * config.head_dim * FLOAT32_BYTES
    return 2 * config.n_layer * slots * row


def _as_json(config: DecoderConfig, options: argparse.Namespace) -> dict[str, object]:
    slots = options.sinks + options.window
    return {
        "model": options.model,
        "config": asdict(config) | {"scaling": _scheme_as_json(config.scaling)},
        "parameters": parameter_count(config),
        "cache": {
            "sinks": options.sinks,
            "window": options.window,
            "slots": slots,
            "bytes": cache_bytes(config, slots),
        },
    }


def _scheme_as_json(scheme: FrequencyScheme) -> dict[str, object]:
    return {"scheme": type(scheme).__name__, **asdict(scheme)}


def _as_rows(config: DecoderConfig, options: argparse.Namespace) -> list[tuple[str, str]]:
    slots = options.sinks + options.window
    rotary_dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    return [
        ("model", options.model),
        ("parameters", f"{parameter_count(config):,}"),
        ("layers", f"{config.n_layer:,}"),
        ("query heads", f"{config.n_head:,}"),
        ("key/value heads", f"{config.n_kv_head:,}"),
        ("head width", f"{config.head_dim:,}"),
        ("hidden width", f"{config.hidden_size:,}"),
        ("feed-forward width", f"{config.intermediate_size:,}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("output head", "the token embedding" if config.tied else "its own"),
        ("context", f"{config.context_length:,}"),
        ("rope base", f"{config.base:,.10g}"),
        ("rope scaling", textwrap.shorten(str(config.scaling), 90, placeholder=" ...")),
        ("rope pairing", f"{config.pairing}, {rotary_dim:,} of {config.head_dim:,} rotated"),
        ("norm epsilon", f"{config.epsilon:g}"),
        (
            "cache",
            f"{in_mebibytes(cache_bytes(config, slots))} in float32 for {slots:,} slots "
            f"({options.sinks:,} sinks and a window of {options.window:,})",
        ),
    ]
