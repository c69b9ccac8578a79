"""A Hugging Face directory: configuration, weights in safetensors files, tokenizer."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import Checkpoint, CheckpointError, GenerationDefaults, Weight
from pytensor_rope.checkpoints.huggingface.generation import generation_defaults
from pytensor_rope.checkpoints.huggingface.json_files import read_json
from pytensor_rope.checkpoints.huggingface.safetensors_file import (
    RowReader,
    TensorInfo,
    check_dtype,
    read_header,
    same_bits,
)
from pytensor_rope.checkpoints.huggingface.tokenizer_files import read_tokenizer
from pytensor_rope.checkpoints.reading import expected_in, read_weight, read_weights, refuse_surplus

if TYPE_CHECKING:
    from pytensor_rope.checkpoints.huggingface.architectures import Architecture

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_directory(path: Path, name: str, dtype: str = "float32", *, with_weights: bool = True) -> Checkpoint:
    """
    Read a directory as Hugging Face's transformers writes it.

    Parameters
    ----------
    path : Path
        The directory.
    name : str
        What to call the checkpoint.
    dtype : {"float32", "float16"}, optional
        dtype to keep the weights in. Default is "float32".
    with_weights : bool, optional
        Whether to read the weights; without, they are only looked for. Default is True.

    Returns
    -------
    Checkpoint
        Its tokenizer is None if there is no ``tokenizer.json``.

    Raises
    ------
    CheckpointError
        If a file is missing, truncated or damaged; if the architecture, or something that may change what the
        model computes, isn't implemented; or if a weight is missing, has another shape than the configuration
        says, or isn't finite.
    ImportError
        If the ``tokenizers`` package is missing.
    """
    try:
        settings = _read_settings(path)
        architecture = _describe(settings)
        tensors = _find_tensors(path)
        weights = _match(architecture, tensors)
        vocab_size = architecture.config.vocab_size
        generation = _read_generation(path, vocab_size)
        tokenizer, why_no_tokenizer = read_tokenizer(path, settings, vocab_size, generation.eos_ids)
        arrays = _read_weights(weights, tensors, dtype) if with_weights else {}
    except ValueError as error:
        raise CheckpointError(f"Can't load {path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"Can't read {error.filename or path}: {error.strerror or error}.") from error
    return Checkpoint(architecture.config, arrays, tokenizer, name, generation, why_no_tokenizer)


def _read_settings(path: Path) -> dict[str, Any]:
    if not (path / "config.json").is_file():
        if any(path.glob("*.gguf")):
            raise CheckpointError("it holds no config.json. To read a GGUF file, give the file's path.")
        raise CheckpointError("it holds no config.json, so this is no directory of a Hugging Face model.")
    settings = read_json(path / "config.json")
    for key in ("quantization_config", "compression_config"):
        if settings.get(key) is not None:
            raise CheckpointError(
                f"config.json has {key}: quantized weights in safetensors aren't implemented. Take the model "
                "that it was made from, or a GGUF file of it."
            )
    return settings


def _describe(settings: Mapping[str, Any]) -> "Architecture":
    # Here, since it imports PyTensor, which reading files can do without.
    from pytensor_rope.checkpoints.huggingface import architectures

    return architectures.describe(settings)


def _read_generation(path: Path, vocab_size: int) -> GenerationDefaults:
    file = path / "generation_config.json"
    generation = generation_defaults(read_json(file)) if file.is_file() else GenerationDefaults()
    for token_id in generation.eos_ids:
        if token_id >= vocab_size:
            raise CheckpointError(
                f"generation_config.json: eos_token_id {token_id} is outside the vocabulary of {vocab_size}."
            )
    return generation


def _find_tensors(path: Path) -> dict[str, TensorInfo]:
    if (path / _WEIGHTS).is_file():
        with _naming(_WEIGHTS):
            return read_header(path / _WEIGHTS)
    if (path / _INDEX).is_file():
        return _find_in_shards(path, _read_index(path / _INDEX))
    if any(path.glob("pytorch_model*.bin")):
        raise CheckpointError(
            "it holds its weights as pytorch_model.bin, which may run code when it is read. Convert them "
            "with transformers: AutoModelForCausalLM.from_pretrained(directory).save_pretrained(directory)."
        )
    raise CheckpointError(f"it holds neither {_WEIGHTS} nor {_INDEX}.")


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{_INDEX}: weight_map must name the file of each tensor.")
    for shard in weight_map.values():
        if not isinstance(shard, str) or not shard or _leaves_directory(shard):
            raise CheckpointError(f"{_INDEX}: weight_map must name files in the directory; got {shard!r}.")
    return weight_map


def _leaves_directory(file_name: str) -> bool:
    paths = (PurePosixPath(file_name), PureWindowsPath(file_name))
    return any(path.anchor or ".." in path.parts for path in paths)


def _find_in_shards(path: Path, weight_map: Mapping[str, str]) -> dict[str, TensorInfo]:
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not (path / shard).is_file():
            raise CheckpointError(f"{_INDEX} names {shard}, which is missing.")
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        with _naming(shard):
            found = read_header(path / shard)
        for name, info in found.items():
            if name in tensors:
                raise CheckpointError(f"the tensor {name} is in {tensors[name].path.name} and in {shard}.")
            if weight_map.get(name, shard) != shard:
                raise CheckpointError(f"the tensor {name} is in {shard}; {_INDEX} says {weight_map[name]}.")
            if name not in weight_map:
                raise CheckpointError(f"{shard} has the tensor {name}, which {_INDEX} doesn't name.")
            tensors[name] = info
    for name, shard in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{shard} lacks the tensor {name}, which {_INDEX} says is there.")
    return tensors


def _match(architecture: "Architecture", tensors: Mapping[str, TensorInfo]) -> list[Weight]:
    """Return what to read, refusing tensors that are missing, surplus, or of another shape or dtype."""
    weights = []
    shapes = {name: info.shape for name, info in tensors.items()}
    for weight in expected_in(shapes, architecture.weights(), "config.json needs"):
        check_dtype(weight.source, tensors[weight.source])
        weights.append(weight)
    surplus = set(tensors).difference(weight.source for weight in weights)
    _check_surplus(architecture, tensors, sorted(surplus))
    return weights


def _check_surplus(
    architecture: "Architecture", tensors: Mapping[str, TensorInfo], surplus: Iterable[str]
) -> None:
    unknown = []
    for name in surplus:
        original = architecture.duplicates.get(name)
        if original is not None and original in tensors:
            if not same_bits(tensors[name], tensors[original]):
                raise CheckpointError(f"the tensor {name} should repeat {original}, and differs from it.")
        elif not architecture.surplus(name):
            unknown.append(name)
    refuse_surplus(unknown)


def _read_weights(
    weights: list[Weight], tensors: Mapping[str, TensorInfo], dtype: str
) -> dict[str, npt.NDArray[np.floating[Any]]]:
    def read(weight: Weight) -> npt.NDArray[np.floating[Any]]:
        info = tensors[weight.source]
        with info.path.open("rb") as file:
            return read_weight(weight, RowReader(file, info, weight.n_row), dtype)

    return read_weights(weights, read)


@contextmanager
def _naming(file_name: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{file_name}: {error}") from error
