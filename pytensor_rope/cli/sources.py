"""Where a command's text and model come from."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pytensor_rope.cli.display import phase

if TYPE_CHECKING:
    from pytensor_rope import DecoderConfig, Model

STANDARD_INPUT = "-"

COMPILE_HINTS = {"numba": " (first time takes about a minute, later starts seconds)"}


def open_model(source: str, dtype: str) -> Model:
    """Load a model, showing that it is being loaded."""
    with phase(f"loading {source}"):
        from pytensor_rope import load_model

        return load_model(source, dtype=dtype)


def read_config(source: str) -> DecoderConfig:
    """Read what a model is, and not its weights."""
    with phase(f"reading {source}"):
        from pytensor_rope import checkpoints

        return checkpoints.load_checkpoint(source, with_weights=False).config


def compiling(backend: str, purpose: str) -> AbstractContextManager[object]:
    """Show that the model is compiled, which happens when it first reads, and what for."""
    return phase(f"compiling for {backend}{COMPILE_HINTS.get(backend, '')}, then {purpose}")


def read_text(source: str) -> str:
    """
    Return the text of a file, or of standard input for ``-``.

    Parameters
    ----------
    source : str
        Path of a UTF-8 file, or ``-``.

    Returns
    -------
    text : str
        The text, with its line ends as they are.

    Raises
    ------
    ValueError
        If it is not UTF-8.
    OSError
        If it can't be read.
    """
    from_standard_input = source == STANDARD_INPUT
    data = sys.stdin.buffer.read() if from_standard_input else Path(source).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if from_standard_input else source
        raise ValueError(f"{name} is not UTF-8 text: byte {error.start} can't be read.") from None
