"""
Safetensors files: the header, checked strictly, and rows of floats.

The ``safetensors`` package has a reader too. It reads bfloat16 into NumPy only with a package that adds the
dtype, maps the whole file into memory, and doesn't say where a tensor lies.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checkpoints.huggingface.json_files import parse_object

# As the safetensors package does.
_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 16

_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
# NumPy has no bfloat16: its bits are the upper half of a float32.
_READ_AS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


@dataclass(frozen=True)
class TensorInfo:
    """
    Where a tensor lies.

    Parameters
    ----------
    path : Path
        The file.
    dtype : str
        As safetensors writes it, for example "BF16".
    shape : tuple of int
        Rows first: ``(out, in)`` for a matrix.
    offset : int
        Bytes from the beginning of the file.
    n_bytes : int
        Its length in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """
    Read where the tensors of a safetensors file lie.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict of str to TensorInfo

    Raises
    ------
    CheckpointError
        If the file is truncated or damaged, or is no safetensors file.
    OSError
        If it can't be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        header, start = _read_object(file, size)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("the header's __metadata__ must be strings by name: damaged file.")
    entries = {name: _read_entry(name, entry) for name, entry in header.items()}
    _check_places(entries, size - start)
    return {
        name: TensorInfo(path, dtype, shape, start + begin, end - begin)
        for name, (dtype, shape, begin, end) in entries.items()
    }


class RowReader:
    """
    Reads rows of one tensor as floats.

    Parameters
    ----------
    file : binary file
        The file, open. Its position changes.
    info : TensorInfo
        Where the tensor lies.
    n_row : int
        Into how many rows to divide it.

    Raises
    ------
    CheckpointError
        If the tensor isn't stored as floats.
    """

    def __init__(self, file: BinaryIO, info: TensorInfo, n_row: int) -> None:
        self._file, self._info = file, info
        self._dtype = np.dtype(_READ_AS[info.dtype])
        self._n_bytes_row = info.n_bytes // n_row

    def __call__(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the rows from ``start`` to before ``stop``, flat."""
        n_bytes = (stop - start) * self._n_bytes_row
        self._file.seek(self._info.offset + start * self._n_bytes_row)
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise CheckpointError(f"{self._info.path.name} became shorter while it was read.")
        values = np.frombuffer(data, self._dtype)
        if self._info.dtype != "BF16":
            return values
        bits = values.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)


def check_dtype(name: str, info: TensorInfo) -> None:
    """Refuse a tensor that isn't stored as floats: quantized, most likely."""
    if info.dtype not in _READ_AS:
        raise CheckpointError(
            f"the tensor {name} is stored as {info.dtype}, and {', '.join(_READ_AS)} are implemented. If the "
            "model is quantized, take the one it was made from, or a GGUF file of it."
        )


def same_bits(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors are the same, bit by bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    n_block = 1 << 20
    with one.path.open("rb") as file, other.path.open("rb") as other_file:
        file.seek(one.offset)
        other_file.seek(other.offset)
        for start in range(0, one.n_bytes, n_block):
            n_bytes = min(n_block, one.n_bytes - start)
            if file.read(n_bytes) != other_file.read(n_bytes):
                return False
    return True


_Entry = tuple[str, tuple[int, ...], int, int]


def _read_object(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the header, and where the tensors begin."""
    if size < 8:
        raise CheckpointError(f"the file has {size} bytes: it is truncated, or no safetensors file.")
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"the header claims {length} bytes: this is no safetensors file, or damaged.")
    if length > size - 8:
        raise CheckpointError(
            f"the file is truncated: the header needs {length} bytes and the file has {size - 8} more."
        )
    data = file.read(length)
    if len(data) != length:
        raise CheckpointError("the file became shorter while it was read.")
    if not data.startswith(b"{"):
        raise CheckpointError("the header is no JSON object: this is no safetensors file, or damaged.")
    return parse_object(data, "the header"), 8 + length


def _read_entry(name: str, entry: Any) -> _Entry:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"the header must give dtype, shape and data_offsets of the tensor {name!r}, and nothing else: "
            "damaged file."
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError(f"the tensor {name!r} has the unknown dtype {dtype!r}.")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(f"the tensor {name!r} has a shape that is no list of sizes: damaged file.")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"the tensor {name!r} has data_offsets that are no range: damaged file.")
    begin, end = offsets
    if math.prod(shape) * _BITS[dtype] != 8 * (end - begin):
        raise CheckpointError(
            f"the tensor {name!r} takes {end - begin} bytes; {dtype} in the shape {tuple(shape)} would take "
            f"{math.prod(shape) * _BITS[dtype] // 8}: damaged file."
        )
    return dtype, tuple(shape), begin, end


def _are_sizes(value: Any) -> bool:
    # Bounded, since JSON may write numbers of thousands of digits.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _check_places(entries: Mapping[str, _Entry], n_bytes: int) -> None:
    """Refuse tensors that don't follow each other from the first byte behind the header to the last."""
    position = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != position:
            how = "leaves a gap before it" if begin > position else "overlaps another"
            raise CheckpointError(f"the tensor {name!r} {how}: damaged file.")
        position = end
    if position > n_bytes:
        raise CheckpointError(
            f"the file is truncated: its tensors need {position} bytes and it has {n_bytes}."
        )
    if position < n_bytes:
        raise CheckpointError(f"the file has {n_bytes - position} bytes behind its tensors: damaged file.")
