"""GGUF files: llama.cpp's format, weights quantized or not, tokenizer and template included."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import Checkpoint, CheckpointError, Metadata, Weight
from pytensor_rope.checkpoints.gguf import architectures
from pytensor_rope.checkpoints.gguf.header import TensorInfo
from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.parts import Parts, read_headers
from pytensor_rope.checkpoints.gguf.tensors import gguf_weights
from pytensor_rope.checkpoints.gguf.tokenizer import read_tokenizer
from pytensor_rope.checkpoints.reading import expected_in, read_weight, read_weights, refuse_surplus
from pytensor_rope.config import DecoderConfig

# Tensors with a factor for each rotary frequency: Llama 3's, or LongRoPE's short and long ones.
_ROPE_FACTORS = (("rope_freqs.weight",), ("rope_factors_short.weight", "rope_factors_long.weight"))

_Dequantize = Callable[[npt.NDArray[np.uint8], int], npt.NDArray[np.float32]]


def load_gguf(path: Path, name: str, dtype: str = "float32", *, with_weights: bool = True) -> Checkpoint:
    """
    Read a GGUF file.

    Parameters
    ----------
    path : Path
        The file, or the first of several, ``name-00001-of-00002.gguf``.
    name : str
        What to call the checkpoint.
    dtype : {"float32", "float16"}, optional
        dtype to keep the weights in. Default is "float32".
    with_weights : bool, optional
        Whether to read the weights; without, they are only looked for. Default is True.

    Returns
    -------
    Checkpoint

    Raises
    ------
    CheckpointError
        If the file is truncated, damaged or not a GGUF file; if its architecture, or a key or a
        tensor in it, isn't implemented; or if a weight is missing, has another shape than the
        metadata say, or isn't finite.
    ImportError
        If the ``gguf`` package or the ``tokenizers`` package is missing.
    """
    dequantize, block_sizes = _quantization()
    try:
        parts = read_headers(path, block_sizes)
        config, weights = _match(parts, _rope_factors(parts, dequantize))
        tokenizer = read_tokenizer(parts.metadata)
        if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}."
            )
        arrays = _read_weights(parts, weights, dequantize, dtype) if with_weights else {}
    except ValueError as error:
        raise CheckpointError(f"Can't load {path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"Can't read {path}: {error.strerror or error}.") from error
    why_none = f"{path} says that it has none." if tokenizer is None else ""
    return Checkpoint(config, arrays, tokenizer, name, why_no_tokenizer=why_none)


def _quantization() -> tuple[_Dequantize, dict[int, tuple[int, int]]]:
    try:
        import gguf
    except ImportError as error:
        raise ImportError(
            "Reading a GGUF file needs the gguf package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    def dequantize(data: npt.NDArray[np.uint8], kind: int) -> npt.NDArray[np.float32]:
        storage = gguf.GGMLQuantizationType(kind)
        try:
            weights: npt.NDArray[np.float32] = gguf.quants.dequantize(data, storage)
            return weights
        except NotImplementedError as error:
            raise CheckpointError(f"the storage format {storage.name} isn't implemented.") from error

    return dequantize, {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


def _rope_factors(parts: Parts, dequantize: _Dequantize) -> npt.NDArray[np.float32] | None:
    """Return what divides the rotary frequencies one by one, None where the file has no such tensor."""
    for names in _ROPE_FACTORS:
        if set(names) <= parts.tensors.keys():
            weights = [Weight(name=name, source=name, shape=parts.tensors[name].shape) for name in names]
            if any(len(weight.shape) != 1 for weight in weights):
                raise CheckpointError(f"the tensor {names[0]} must have one axis; got {weights[0].shape}.")
            factors = _read_weights(parts, weights, dequantize)
            return factors[names[0]] if len(names) == 1 else np.stack([factors[name] for name in names])
    return None


def _match(parts: Parts, rope_factors: npt.NDArray[np.float32] | None) -> tuple[DecoderConfig, list[Weight]]:
    _check_whole_model(parts.metadata)
    architecture = parts.metadata.get("general.architecture")
    if architecture not in architectures.ARCHITECTURES:
        raise CheckpointError(
            f"the architecture {architecture!r} isn't implemented; implemented: "
            f"{', '.join(architectures.ARCHITECTURES)}."
        )
    module = import_module(f"{architectures.__name__}.{architecture.replace('-', '_')}")
    shapes = {name: info.shape for name, info in parts.tensors.items()}
    described: Description = module.describe(ModelFile(architecture, parts.metadata, shapes, rope_factors))
    weights = _check_tensors(gguf_weights(described.config, described.layout), shapes)
    return described.config, weights


def _check_whole_model(metadata: Metadata) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"this is of the type {kind!r}, not a model.")


def _check_tensors(expected: Iterable[Weight], shapes: dict[str, tuple[int, ...]]) -> list[Weight]:
    weights = list(expected_in(shapes, expected, "the metadata need"))
    surplus = set(shapes).difference(weight.source for weight in weights)
    for read in _ROPE_FACTORS:
        if surplus.issuperset(read):
            surplus.difference_update(read)
    refuse_surplus(surplus)
    return weights


def _read_weights(
    parts: Parts, weights: list[Weight], dequantize: _Dequantize, dtype: str = "float32"
) -> dict[str, npt.NDArray[Any]]:
    def read(weight: Weight) -> npt.NDArray[Any]:
        with parts.paths[weight.source].open("rb") as file:
            return _read_weight(file, weight, parts.tensors[weight.source], dequantize, dtype)

    return read_weights(weights, read)


def _read_weight(
    file: BinaryIO, weight: Weight, info: TensorInfo, dequantize: _Dequantize, dtype: str
) -> npt.NDArray[Any]:
    def read(offset: int, n_bytes: int) -> npt.NDArray[np.float32]:
        file.seek(info.offset + offset)
        data = file.read(n_bytes)
        if len(data) != n_bytes:
            raise CheckpointError("the file became shorter while it was read.")
        with np.errstate(all="ignore"):  # what isn't finite is refused afterwards
            return dequantize(np.frombuffer(data, np.uint8).reshape(1, -1), info.kind)

    def read_rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        if len(weight.shape) > 1:
            n_bytes_row = info.n_bytes // weight.shape[0]
            return read(start * n_bytes_row, (stop - start) * n_bytes_row)
        values = read(0, info.n_bytes).ravel()
        return values if weight.rows is None else values[start:stop]

    return read_weight(weight, read_rows, dtype)
