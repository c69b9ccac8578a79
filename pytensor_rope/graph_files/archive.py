"""
The file around a graph: a zip archive of ``graph.json`` and ``weights.safetensors``, neither compressed.

Without compression no part is larger than the file, and a zip bomb can't be written. Nothing is unpacked to
the disk, so the names of the parts are no paths.
"""

import json
import os
import stat
import struct
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from pytensor_rope.atomic_files import write_atomically
from pytensor_rope.graph_files.errors import GraphFileError

DESCRIPTION, WEIGHTS = "graph.json", "weights.safetensors"
FORMAT = "pytensor-rope graph"
FORMAT_VERSION = 1

_LONGEST_DESCRIPTION = 1 << 26
# The directory of two short names, at the end of the archive, and the records behind it.
_LONGEST_DIRECTORY = 1024
_END, _END_64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"


def write_archive(path: Path, description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write a description, to which the digest is added, and its tensors, in one step."""
    weights = _safetensors().save(
        {name: np.require(array, requirements="C") for name, array in tensors.items()}
    )
    described = json.dumps(
        description | {"digest": digest(description, weights)}, indent=1, ensure_ascii=False, allow_nan=False
    )
    encoded = described.encode()
    if len(encoded) > _LONGEST_DESCRIPTION:
        raise GraphFileError(f"The graph is too large: its description would have {len(encoded):,} bytes.")
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_STORED) as archive:
        for name, content in ((DESCRIPTION, encoded), (WEIGHTS, weights)):
            archive.writestr(ZipInfo(name), content)  # dated 1980: equal graphs make equal files
    write_atomically(path, buffer.getvalue())


def read_archive(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """
    Read an archive, and check that it is whole and of a version that is known.

    Raises
    ------
    GraphFileError
        If the file is not a graph's, of a newer format version, or damaged.
    ImportError
        If safetensors isn't installed.
    OSError
        If the file can't be read.
    """
    numpy_format = _safetensors()
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():  # opening a pipe would wait
        raise _foreign(path)
    with path.open("rb") as file:
        encoded, weights = _read_parts(file, path)
    description = _parsed(encoded, path)
    version = _version(description, path)
    if version > FORMAT_VERSION:
        raise GraphFileError(
            f"{path} has format version {version}, and this version of pytensor-rope reads up to "
            f"{FORMAT_VERSION}: update pytensor-rope."
        )
    if description.get("digest") != digest(description, weights):
        raise damaged(path, "its content is not what its digest was made of")
    try:
        tensors = {name: np.array(array) for name, array in numpy_format.load(weights).items()}
    except Exception as error:
        # The library raises its own error, KeyError for an unknown dtype, and others.
        raise damaged(path, str(error)) from error
    return description, tensors


def digest(description: Mapping[str, Any], weights: bytes) -> str:
    """Return the SHA-256 of a description, apart from the digest itself, and of the weights' bytes."""
    said = {key: value for key, value in description.items() if key != "digest"}
    total = sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())
    total.update(weights)
    return total.hexdigest()


def damaged(path: object, how: str) -> GraphFileError:
    """Return the error of a file that isn't as it was written."""
    return GraphFileError(f"{path} is damaged: {how}. Save the graph again.")


def _foreign(path: Path) -> GraphFileError:
    return GraphFileError(f"{path} is no graph that save_graph wrote, or it has lost its end.")


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise missing_extra("safetensors") from error
    return safetensors.numpy


def missing_extra(package: str) -> ImportError:
    """Return the error of a package that is not installed."""
    return ImportError(f'Graph files need {package}. Install it: pip install "pytensor-rope[ml]".')


def _read_parts(file: BinaryIO, path: Path) -> tuple[bytes, bytes]:
    """Return the description and the weights, as bytes."""
    size = os.fstat(file.fileno()).st_size
    if not _has_small_directory(file, size):
        raise _foreign(path)
    try:
        with ZipFile(file) as archive:
            parts = archive.infolist()
            if sorted(part.orig_filename for part in parts) != [DESCRIPTION, WEIGHTS]:
                raise damaged(path, f"it must hold {DESCRIPTION} and {WEIGHTS}, and nothing else")
            for part in parts:
                stored = part.compress_type == ZIP_STORED and part.file_size == part.compress_size
                if not stored or part.flag_bits & 1 or part.file_size > size:
                    raise damaged(path, f"{part.filename} is compressed, encrypted or too long")
            if archive.getinfo(DESCRIPTION).file_size > _LONGEST_DESCRIPTION:
                raise damaged(path, f"{DESCRIPTION} is longer than any that save_graph writes")
            return archive.read(DESCRIPTION), archive.read(WEIGHTS)
    except GraphFileError:
        raise
    except (BadZipFile, EOFError, struct.error, ValueError, NotImplementedError, RuntimeError) as error:
        raise damaged(path, str(error) or "it has lost its end") from error
    except (IndexError, OverflowError, MemoryError, OSError) as error:  # an offset outside the file
        raise damaged(path, str(error)) from error


def _has_small_directory(file: BinaryIO, size: int) -> bool:
    """Return whether a file ends as a small archive does, before a directory of any size is read."""
    tail_size = min(size, 22 + 20 + 56)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    file.seek(0)
    if len(tail) < 22 or tail[-22:-18] != _END:
        return False
    n_part, directory_size = struct.unpack("<HL", tail[-12:-6])
    small = n_part == 2 and directory_size <= _LONGEST_DIRECTORY and tail[-2:] == b"\0\0"
    if tail[-42:-38] != _LOCATOR:
        return small
    # An archive of more than 4 GB: the record before says what the last one has no room for.
    large_count, large_size = struct.unpack("<32xQQ8x", tail[-98:-42]) if len(tail) == 98 else (0, 0)
    record = tail[-98:-94] == _END_64 and large_count == 2 and large_size <= _LONGEST_DIRECTORY
    return record and n_part in (2, 0xFFFF)


def _parsed(encoded: bytes, path: Path) -> dict[str, Any]:
    """Return the description, refusing what isn't JSON in the strict sense."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key is there twice")
        return made

    try:
        description = json.loads(encoded.decode(), parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError, MemoryError) as error:
        raise damaged(path, f"{DESCRIPTION} can't be read ({error})") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise _foreign(path)
    return description


def _version(description: dict[str, Any], path: Path) -> int:
    version = description.get("format_version")
    if type(version) is not int or version < 1:
        raise damaged(path, "its format_version is no positive integer")
    return version
