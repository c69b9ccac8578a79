"""JSON read strictly: bounded, an object, no key twice, no number that isn't one."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from pytensor_rope.checkpoints.base import CheckpointError

# The largest tokenizers take 40 MB.
MAX_BYTES = 200_000_000


def read_json(path: Path) -> dict[str, Any]:
    """
    Read a file that holds a JSON object.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict

    Raises
    ------
    CheckpointError
        If the file is too large, or holds anything else.
    OSError
        If it can't be read.
    """
    return parse_object(read_bounded(path), path.name)


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a small file, refusing one that is larger than such files are."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"{path.name} is larger than {MAX_BYTES // 1_000_000} MB: damaged file.")
    return data


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file."""
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path.name} isn't UTF-8 text: {error.reason} at byte {error.start}."
        ) from error


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """
    Return the JSON object that is written in UTF-8.

    Parameters
    ----------
    data : bytes
        The object as text.
    name : str
        What to call it in errors.

    Returns
    -------
    dict

    Raises
    ------
    CheckpointError
        If this is no JSON object, is nested too deep, or has a key twice or a number that isn't finite.
    """
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_without_repeats,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested too deep: damaged file.") from error
    except ValueError as error:
        raise CheckpointError(f"{name} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} must hold a JSON object; got {type(value).__name__}.")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"it has the key {key!r} twice.")
        values[key] = value
    return values


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large.")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number.")
