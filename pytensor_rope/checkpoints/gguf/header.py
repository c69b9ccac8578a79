"""
The header of a GGUF file: metadata, and where the tensors lie.

The ``gguf`` package has a reader too. It takes lengths at their word, so that a damaged file may
keep it busy for ever; here every length is held against the file's size before it is used.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from pytensor_rope.checkpoints.base import CheckpointError, Metadata

_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    _FLOAT32: "<f4",
    _BOOL: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class TensorInfo:
    """
    Where a tensor lies.

    Parameters
    ----------
    shape : tuple of int
        Rows first: ``(out, in)`` for a matrix.
    kind : int
        Its storage format, a ``gguf.GGMLQuantizationType``.
    offset : int
        Bytes from the beginning of the file.
    n_bytes : int
        Its length in the file.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """The metadata and the tensors of a GGUF file."""

    metadata: Metadata
    tensors: dict[str, TensorInfo]


def read_header(file: BinaryIO, block_sizes: Mapping[int, tuple[int, int]]) -> Header:
    """
    Read the header and check that every tensor lies within the file.

    Parameters
    ----------
    file : binary file
        Open at its beginning.
    block_sizes : mapping of int to (int, int)
        For each storage format, how many values a block holds and how many bytes it takes.

    Returns
    -------
    Header
        Metadata values are str, bool, int, float, ``np.float32``, list of str, or ndarray.

    Raises
    ------
    CheckpointError
        If this isn't a GGUF file of version 2 or 3, or is truncated or damaged.
    """
    fields = _Fields(file)
    if fields.size == 0:
        raise CheckpointError("the file is empty.")
    if fields.remaining() < 4 or fields.take(4) != b"GGUF":
        raise CheckpointError("this is not a GGUF file.")
    version = fields.integer("<u4")
    if version not in (2, 3):
        raise CheckpointError(
            f"GGUF version {version} isn't implemented; versions 2 and 3, little-endian, are."
        )
    n_tensor, n_key = fields.integer("<u8"), fields.integer("<u8")
    metadata = _read_metadata(fields, n_key)
    tensors = _read_tensors(fields, n_tensor, block_sizes, _alignment(metadata))
    return Header(metadata, tensors)


def _read_metadata(fields: "_Fields", n_key: int) -> Metadata:
    metadata: Metadata = {}
    for _ in range(n_key):
        key = fields.string()
        if key in metadata:
            raise CheckpointError(f"the metadata has {key!r} twice.")
        metadata[key] = fields.value(fields.integer("<u4"))
    return metadata


def _alignment(metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"general.alignment must be a power of two; got {alignment!r}.")
    return alignment


def _read_tensors(
    fields: "_Fields",
    n_tensor: int,
    block_sizes: Mapping[int, tuple[int, int]],
    alignment: int,
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    # Tensors follow each other without gaps or overlaps, which tells a damaged offset.
    expected = 0
    for _ in range(n_tensor):
        name = fields.string()
        if name in tensors:
            raise CheckpointError(f"the file has the tensor {name!r} twice.")
        n_dimension = fields.integer("<u4")
        if not 1 <= n_dimension <= _MAX_DIMENSIONS:
            raise CheckpointError(f"the tensor {name!r} has {n_dimension} dimensions.")
        shape = tuple(fields.integer("<u8") for _ in range(n_dimension))[::-1]
        kind, offset = fields.integer("<u4"), fields.integer("<u8")
        if kind not in block_sizes:
            raise CheckpointError(f"the tensor {name!r} has the unknown storage format {kind}.")
        if offset != expected:
            raise CheckpointError(f"the tensor {name!r} is not where it should be: damaged file.")
        block, n_bytes_block = block_sizes[kind]
        if shape[-1] % block:
            raise CheckpointError(
                f"the rows of the tensor {name!r} have {shape[-1]} values, not a multiple of the "
                f"{block} that its storage format needs."
            )
        n_bytes = math.prod(shape) // block * n_bytes_block
        tensors[name] = TensorInfo(shape, kind, offset, n_bytes)
        expected = _round_up(offset + n_bytes, alignment)

    start = _round_up(fields.position, alignment)
    placed = {
        name: TensorInfo(info.shape, info.kind, start + info.offset, info.n_bytes)
        for name, info in tensors.items()
    }
    for name, info in placed.items():
        if info.offset + info.n_bytes > fields.size:
            raise CheckpointError(
                f"the file is truncated: {name!r} ends at byte {info.offset + info.n_bytes} and "
                f"the file at {fields.size}."
            )
    return placed


class _Fields:
    """The fields of a header, read one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self.position = file.seek(0)

    def remaining(self) -> int:
        return self.size - self.position

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.remaining():
            raise CheckpointError(
                f"the file is truncated or damaged: the header asks for {n_bytes} bytes at byte "
                f"{self.position} of {self.size}."
            )
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise CheckpointError("the file became shorter while it was read.")
        self.position += n_bytes
        return data

    def integer(self, dtype: str) -> int:
        data = self.take(int(dtype[2:]))
        return int.from_bytes(data, "little")

    def string(self) -> str:
        try:
            return self.take(self.integer("<u8")).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError("the header holds a string that isn't UTF-8.") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        data = self.take(self._dtype(kind).itemsize)
        value = np.frombuffer(data, self._dtype(kind))[0]
        return value if kind == _FLOAT32 else value.item()

    def _array(self) -> Any:
        kind, length = self.integer("<u4"), self.integer("<u8")
        if kind == _STRING:
            return self._strings(length)
        dtype = self._dtype(kind)
        return np.frombuffer(self.take(length * dtype.itemsize), dtype)

    def _strings(self, length: int) -> list[str]:
        return [self.string() for _ in range(length)]

    def _dtype(self, kind: int) -> np.dtype[Any]:
        if kind not in _SCALARS:
            raise CheckpointError(f"the metadata has a value of the unknown type {kind}.")
        return np.dtype(_SCALARS[kind])


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
