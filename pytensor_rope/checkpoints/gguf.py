"""GGUF files: llama.cpp's format, weights quantized or not, tokenizer and template included."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import Checkpoint, CheckpointError, Metadata, Weight
from pytensor_rope.checkpoints.gguf_header import Header, TensorInfo, read_header
from pytensor_rope.checkpoints.gguf_tokenizer import read_tokenizer
from pytensor_rope.config import DecoderConfig

#: Each has a module of its name beside this one, with ``gguf_config`` and ``gguf_weights``.
ARCHITECTURES = ("llama",)

# Tensors with a factor for each rotary frequency: Llama 3's, or LongRoPE's short and long ones.
_ROPE_FACTORS = (("rope_freqs.weight",), ("rope_factors_short.weight", "rope_factors_long.weight"))

_Dequantize = Callable[[npt.NDArray[np.uint8], int], npt.NDArray[np.float32]]

# Small enough to stay in the processor's cache, large enough to make NumPy's overhead small.
_VALUES_AT_ONCE = 1 << 18


def load_gguf(path: Path, name: str) -> Checkpoint:
    """
    Read a GGUF file.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What to call the checkpoint.

    Returns
    -------
    Checkpoint
        With every weight in float32.

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
        with path.open("rb") as file:
            header = read_header(file, block_sizes)
        config, weights = _match(header, _rope_factors(path, header, dequantize))
        tokenizer = read_tokenizer(header.metadata)
        if tokenizer.vocab_size != config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}."
            )
        arrays = _read_weights(path, weights, header, dequantize)
    except ValueError as error:
        raise CheckpointError(f"Can't load {path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"Can't read {path}: {error.strerror or error}.") from error
    return Checkpoint(config, arrays, tokenizer, name)


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


def _rope_factors(path: Path, header: Header, dequantize: _Dequantize) -> npt.NDArray[np.float32] | None:
    """Return what divides the rotary frequencies one by one, None where the file has no such tensor."""
    for names in _ROPE_FACTORS:
        if set(names) <= header.tensors.keys():
            weights = [Weight(name=name, source=name, shape=header.tensors[name].shape) for name in names]
            if any(len(weight.shape) != 1 for weight in weights):
                raise CheckpointError(f"the tensor {names[0]} must have one axis; got {weights[0].shape}.")
            factors = _read_weights(path, weights, header, dequantize)
            return factors[names[0]] if len(names) == 1 else np.stack([factors[name] for name in names])
    return None


def _match(
    header: Header, rope_factors: npt.NDArray[np.float32] | None
) -> tuple[DecoderConfig, list[Weight]]:
    _check_whole_model(header.metadata)
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"the architecture {architecture!r} isn't implemented; implemented: {', '.join(ARCHITECTURES)}."
        )
    module = import_module(f"pytensor_rope.checkpoints.{architecture}")
    shapes = {name: info.shape for name, info in header.tensors.items()}
    config = module.gguf_config(header.metadata, shapes, rope_factors)
    weights = _check_tensors(module.gguf_weights(config), shapes)
    return config, weights


def _check_whole_model(metadata: Metadata) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"this is of the type {kind!r}, not a model.")
    parts = metadata.get("split.count", 0)
    if not isinstance(parts, int) or parts > 1:
        raise CheckpointError("this is one part of a model split over several files: merge them.")


def _check_tensors(expected: Iterable[Weight], shapes: dict[str, tuple[int, ...]]) -> list[Weight]:
    weights = []
    surplus = set(shapes)
    for read in _ROPE_FACTORS:
        if surplus.issuperset(read):
            surplus.difference_update(read)
    # Stops at the first that is missing: a damaged file may promise billions of layers.
    for weight in expected:
        if weight.source not in shapes:
            raise CheckpointError(f"the tensor {weight.source} is missing.")
        if shapes[weight.source] != weight.shape:
            raise CheckpointError(
                f"the tensor {weight.source} has shape {shapes[weight.source]}; the metadata need "
                f"{weight.shape}."
            )
        surplus.remove(weight.source)
        weights.append(weight)
    if surplus:
        names = sorted(surplus)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise CheckpointError(f"the tensors {', '.join(names[:3])}{more} aren't implemented.")
    return weights


def _read_weights(
    path: Path, weights: list[Weight], header: Header, dequantize: _Dequantize
) -> dict[str, npt.NDArray[np.float32]]:
    def read(weight: Weight) -> npt.NDArray[np.float32]:
        with path.open("rb") as file:
            return _read_weight(file, weight, header.tensors[weight.source], dequantize)

    with ThreadPoolExecutor(2) as pool:
        arrays = pool.map(read, weights)
        return {weight.name: array for weight, array in zip(weights, arrays, strict=True)}


def _read_weight(
    file: BinaryIO, weight: Weight, info: TensorInfo, dequantize: _Dequantize
) -> npt.NDArray[np.float32]:
    array, rows = weight.empty()
    n_row = 1 if rows.ndim == 1 else rows.shape[0]
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    n_bytes_row = info.n_bytes // n_row
    step = max(_VALUES_AT_ONCE // rows.shape[1], 1)
    file.seek(info.offset)
    for start in range(0, n_row, step):
        stop = min(start + step, n_row)
        data = file.read((stop - start) * n_bytes_row)
        if len(data) != (stop - start) * n_bytes_row:
            raise CheckpointError("the file became shorter while it was read.")
        blocks = np.frombuffer(data, np.uint8).reshape(1, -1)
        with np.errstate(all="ignore"):  # what isn't finite is refused below
            values = dequantize(blocks, info.kind).reshape(stop - start, -1)
        if not np.isfinite(values).all():
            raise CheckpointError(f"the tensor {weight.source} holds values that aren't finite.")
        place = slice(start, stop) if weight.rows is None else weight.rows[start:stop]
        rows[place] = values
    return array
