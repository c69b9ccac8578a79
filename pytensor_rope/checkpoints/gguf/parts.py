"""Models split over several files, ``name-00001-of-00002.gguf`` and so on."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytensor_rope.checkpoints.base import CheckpointError, Metadata
from pytensor_rope.checkpoints.gguf.header import Header, TensorInfo, read_header

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL)


class Parts(NamedTuple):
    """
    What the files of a model hold.

    Attributes
    ----------
    metadata : dict
        Those of the first file.
    tensors : dict of str to TensorInfo
        The tensors of all files.
    paths : dict of str to Path
        Which file each lies in.
    """

    metadata: Metadata
    tensors: dict[str, TensorInfo]
    paths: dict[str, Path]


def read_headers(path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> Parts:
    """
    Read the header of a file, and of all others that belong to the same model.

    Parameters
    ----------
    path : Path
        The only file, or the first.
    block_sizes : mapping of int to (int, int)
        As :func:`~pytensor_rope.checkpoints.gguf.header.read_header` takes it.

    Returns
    -------
    Parts

    Raises
    ------
    CheckpointError
        If a file is missing, damaged, not of this model, or not the first.
    """
    first = _header(path, block_sizes)
    tensors = dict(first.tensors)
    paths = dict.fromkeys(tensors, path)
    for number, part in enumerate(_others(path, first.metadata), start=2):
        if not part.is_file():
            raise CheckpointError(f"the model has further files, and {part} is missing.")
        try:
            header = _header(part, block_sizes)
        except CheckpointError as error:
            raise CheckpointError(f"{part.name}: {error}") from error
        count = _number(first.metadata, "split.count", 1)
        if (_number(header.metadata, "split.no"), _number(header.metadata, "split.count")) != (
            number - 1,
            count,
        ):
            raise CheckpointError(f"{part} isn't part {number} of {count}.")
        twice = sorted(tensors.keys() & header.tensors.keys())
        if twice:
            raise CheckpointError(f"the tensor {twice[0]} is in {paths[twice[0]].name} and in {part.name}.")
        tensors |= header.tensors
        paths |= dict.fromkeys(header.tensors, part)
    expected = _number(first.metadata, "split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(
            f"the files have {len(tensors)} tensors, and split.tensors.count is {expected}."
        )
    return Parts(first.metadata, tensors, paths)


def _header(path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> Header:
    with path.open("rb") as file:
        return read_header(file, block_sizes)


def _others(path: Path, metadata: Metadata) -> list[Path]:
    """Return the files behind the first, if there are any."""
    count, number = _number(metadata, "split.count", 1), _number(metadata, "split.no", 0)
    if count <= 1:
        return []
    named = _NAME.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise CheckpointError(
            f"this is one part of a model split over several files: its name must end with "
            f"-00001-of-{count:05}.gguf, and the other parts must lie beside it."
        )
    if number != 0 or int(named[2]) != 1:
        raise CheckpointError(
            f"this is part {number + 1} of a model split over several files: give the first, "
            f"{named[1]}-00001-of-{named[3]}{named[4]}."
        )
    return [path.with_name(f"{named[1]}-{i:05}-of-{named[3]}{named[4]}") for i in range(2, count + 1)]


_REQUIRED: Any = object()


def _number(metadata: Metadata, key: str, default: int = _REQUIRED) -> int:
    value = metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{key} is {None if value is _REQUIRED else value!r}: an integer is needed.")
    return value
