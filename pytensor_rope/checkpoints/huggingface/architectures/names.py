"""Which tensor of a file each weight is, or is a part of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import Weight
from pytensor_rope.config import DecoderConfig
from pytensor_rope.weights import weight_shapes

Rows = npt.NDArray[np.intp]

_MATRICES = {"query", "key", "value", "output", "gate", "up", "down", "head"}


class Part(NamedTuple):
    """
    Where a weight lies in a tensor that holds several.

    Attributes
    ----------
    source : str
        The tensor's name, without ``.weight`` or ``.bias``.
    n_row : callable
        Number of the tensor's rows, given the configuration.
    rows : callable
        Which of them are the weight's, given the configuration.
    """

    source: str
    n_row: Callable[[DecoderConfig], int]
    rows: Callable[[DecoderConfig], Rows]


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """
    The names of a file's tensors, without ``.weight`` or ``.bias``.

    Parameters
    ----------
    layer : mapping of str to (str or Part)
        The names in one layer, by ours.
    layers : str, optional
        What stands before a layer's number. Default is "model.layers".
    embedding, final_norm, head : str, optional
        The names of the other tensors. Defaults are those of Llama.
    """

    layer: Mapping[str, str | Part]
    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"


def weights_of(config: DecoderConfig, names: TensorNames) -> Iterator[Weight]:
    """Yield where each weight of a decoder lies in the file."""
    for name, shape in weight_shapes(config).items():
        path, _, last = name.rpartition(".")
        ours = last.removesuffix("_bias")
        kind = "weight" if ours == last else "bias"
        if path:
            prefix, place = f"{names.layers}.{path.removeprefix('layers.')}.", names.layer[ours]
        else:
            prefix, place = "", str(getattr(names, ours))
        transpose = ours in _MATRICES and kind == "weight"
        shape = shape[::-1] if transpose else shape
        if isinstance(place, str):
            yield Weight(name=name, source=f"{prefix}{place}.{kind}", shape=shape, transpose=transpose)
            continue
        yield Weight(
            name=name,
            source=f"{prefix}{place.source}.{kind}",
            shape=(place.n_row(config), *shape[1:]),
            transpose=transpose,
            rows=place.rows(config),
        )


def stacked_heads(source: str) -> dict[str, Part]:
    """Return where queries, keys and values lie in a tensor that has them one after the other."""

    def n_row(config: DecoderConfig) -> int:
        return (config.n_head + 2 * config.n_kv_head) * config.head_dim

    def rows(config: DecoderConfig, kind: int) -> Rows:
        bounds = np.cumsum([0, config.n_head, config.n_kv_head, config.n_kv_head]) * config.head_dim
        return np.arange(bounds[kind], bounds[kind + 1])

    return _parts(source, ("query", "key", "value"), n_row, rows)


def interleaved_heads(source: str) -> dict[str, Part]:
    """Return where queries, keys and values lie in a tensor that has, head by head, the three of it."""

    def n_row(config: DecoderConfig) -> int:
        return 3 * config.n_head * config.head_dim

    def rows(config: DecoderConfig, kind: int) -> Rows:
        starts = (3 * np.arange(config.n_head) + kind) * config.head_dim
        return (starts[:, None] + np.arange(config.head_dim)).ravel()

    return _parts(source, ("query", "key", "value"), n_row, rows)


def stacked_gate(source: str) -> dict[str, Part]:
    """Return where the gated projection and the other lie in a tensor that has the gated one first."""

    def n_row(config: DecoderConfig) -> int:
        return 2 * config.intermediate_size

    def rows(config: DecoderConfig, kind: int) -> Rows:
        return kind * config.intermediate_size + np.arange(config.intermediate_size)

    return _parts(source, ("gate", "up"), n_row, rows)


def _parts(
    source: str,
    names: tuple[str, ...],
    n_row: Callable[[DecoderConfig], int],
    rows: Callable[[DecoderConfig, int], Rows],
) -> dict[str, Part]:
    def of_kind(kind: int) -> Callable[[DecoderConfig], Rows]:
        return lambda config: rows(config, kind)

    return {name: Part(source, n_row, of_kind(kind)) for kind, name in enumerate(names)}
