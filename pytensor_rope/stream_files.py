"""
Streams in files: what a stream has read, to go on from in another process or on another backend.

A file is in the safetensors format. Its tensors are the state's, by name: ``keys.{i}`` and ``values.{i}`` for
each layer i, and ``length`` with the number of tokens each row has seen. ``longest`` is the most that each
row had seen since it was empty: a slot once overwritten stays so, however far a row goes back. The metadata,
all strings, are

- ``format``: "pytensor-rope stream";
- ``format_version``: an integer, raised when an older reader would misread the file;
- ``layout``: JSON, the batch, the dtype, heads and head size, and each layer's sinks, window, headroom and
  positions;
- ``model``: JSON, the hyper-parameters and a digest of the weights;
- ``digest``: SHA-256 of all of the above and of the tensors.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from pytensor_rope.atomic_files import write_atomically
from pytensor_rope.weights import separate_projections

if TYPE_CHECKING:
    from pytensor_rope.decoder import Decoder
    from pytensor_rope.stream import Stream

FORMAT = "pytensor-rope stream"
FORMAT_VERSION = 1

# No header of a stream comes near; a foreign file's first eight bytes may say anything.
_LONGEST_HEADER = 1 << 22


def save_stream(stream: "Stream", path: str | os.PathLike[str]) -> None:
    """Write a stream's state to ``path``, in one step; see :meth:`Stream.save`."""
    numpy_format = _safetensors()
    arrays = stream._own_state.arrays()
    # A call that was interrupted may have read a token that the stream hasn't counted.
    arrays["longest"] = np.maximum(stream._rows.longest.astype("int32"), arrays["length"])
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "layout": json.dumps(_layout(stream)),
        "model": json.dumps(_model(stream.decoder)),
    }
    metadata["digest"] = _digest(metadata, arrays)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_atomically(Path(path), numpy_format.save(contiguous, metadata))


def load_stream(stream: "Stream", path: str | os.PathLike[str]) -> None:
    """Put the state in ``path`` into a stream; see :meth:`Stream.load`."""
    metadata, arrays = read_stream_file(Path(path))
    layout, model = (json.loads(metadata[key]) for key in ("layout", "model"))
    _check_layout(layout, _layout(stream), path)
    _check_model(model, _model(stream.decoder), path)
    own = stream._own_state.arrays() | {"longest": stream._rows.longest.astype("int32")}
    if _types(arrays) != _types(own):
        raise _damaged(path, "its tensors are not those that its layout announces")
    length, longest = arrays["length"], arrays.pop("longest")
    if length.min() < 0 or (length > longest).any():
        raise _damaged(path, f"its rows can't have seen {length} tokens, and {longest} at most")
    stream._own_state.replace(arrays)
    stream._rows.count_from(length, longest)


def read_stream_file(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """
    Read a file of the format above, and check that it is whole.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    metadata : dict of str to str
    arrays : dict of str to ndarray
        Writable, and nobody else's.

    Raises
    ------
    ValueError
        If the file is not a stream's, of a newer format version, or damaged.
    ImportError
        If safetensors isn't installed.
    OSError
        If the file can't be read.
    """
    numpy_format = _safetensors()
    with path.open("rb") as file:
        metadata = _read_metadata(file, path)
        file.seek(0)
        data = file.read()
    try:
        arrays = {name: np.array(array) for name, array in numpy_format.load(data).items()}
    except Exception as error:
        # The library raises its own error, KeyError for an unknown dtype, and others.
        raise _damaged(path, str(error)) from error
    if _digest(metadata, arrays) != metadata.get("digest"):
        raise _damaged(path, "its content is not what its digest was made of")
    return metadata, arrays


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            'Streams are saved with safetensors. Install it: pip install "pytensor-rope[checkpoints]".'
        ) from error
    return safetensors.numpy


def _read_metadata(file: BinaryIO, path: Path) -> dict[str, str]:
    """Return the metadata of a file that is a stream's, of this version, and as long as it should be."""
    size = os.fstat(file.fileno()).st_size
    header_size = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(header_size)) if header_size <= _LONGEST_HEADER else {}
        metadata = header.pop("__metadata__")
        version = int(metadata["format_version"]) if metadata["format"] == FORMAT else 0
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        version = 0
    if version < 1:
        raise ValueError(f"{path} is no stream that save wrote, or its beginning is damaged.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, and this version of pytensor-rope reads up to "
            f"{FORMAT_VERSION}: update pytensor-rope."
        )
    try:
        announced = 8 + header_size + max(tensor["data_offsets"][1] for tensor in header.values())
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _damaged(path, "its header names no tensors") from error
    if size != announced:
        raise _damaged(path, f"it has {size:,} bytes, and its header announces {announced:,}")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its metadata are no strings")
    return cast(dict[str, str], metadata)


def _types(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(array.dtype), array.shape) for name, array in sorted(arrays.items())}


def _damaged(path: str | os.PathLike[str], how: str) -> ValueError:
    return ValueError(f"{os.fspath(path)} is damaged: {how}. Save the stream again.")


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the metadata, apart from the digest itself, and of the tensors."""
    described = _types(arrays)
    said = {key: value for key, value in sorted(metadata.items()) if key != "digest"}
    total = sha256(json.dumps([said, described]).encode())
    for name in described:
        total.update(np.ascontiguousarray(arrays[name]))
    return total.hexdigest()


def _layout(stream: "Stream") -> dict[str, Any]:
    """Return what the shape and the meaning of a stream's state depend on, as it stands in a file."""
    config = stream.decoder.config
    return {
        "batch": stream.batch,
        "dtype": stream.dtype,
        "n_kv_head": config.n_kv_head,
        "head_dim": config.head_dim,
        "layers": [
            {
                "sinks": layer.sinks,
                "window": layer.window,
                "headroom": layer.headroom,
                "positions": layer.positions,
            }
            for layer in stream.decoder.layer_caches(stream.cache)
        ],
    }


def _model(decoder: "Decoder") -> dict[str, Any]:
    """Return the hyper-parameters and a digest of the weights: the same on every backend."""
    return {"config": _plain(decoder.config), "weights": weights_digest(decoder)}


def weights_digest(decoder: "Decoder") -> str:
    """
    Return a digest of a decoder's weights: their names, shapes, dtypes and every bit of them.

    A checksum of each weight, and SHA-256 over these: as fast as a checksum is, and it tells apart
    models, not forgeries. Joined projections count as the weights they are made of. It is computed anew each
    time, since weights may change in place. SmolLM2's 538 MB take a third of a second.

    Parameters
    ----------
    decoder : Decoder
        The model.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    values = {name: np.asarray(weight.get_value(borrow=True)) for name, weight in decoder.parameters.items()}
    described = [
        (name, weight.shape, str(weight.dtype), zlib.crc32(np.ascontiguousarray(weight)))
        for name, weight in sorted(separate_projections(values, decoder.config).items())
    ]
    return sha256(json.dumps(described).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a hyper-parameter as JSON has it, equal for equal ones: 10_000 and 10_000.0 are the same."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {"type": type(value).__name__, **plain}


def _check_layout(saved: dict[str, Any], own: dict[str, Any], path: str | os.PathLike[str]) -> None:
    alike = _layers_are_alike(saved) and _layers_are_alike(own)
    differences = _differences(_settings(saved, alike), _settings(own, alike))
    if differences:
        raise ValueError(
            f"{os.fspath(path)} was saved by a stream of another layout: {differences}. Load it into a "
            "stream made with the file's settings."
        )


def _check_model(saved: dict[str, Any], own: dict[str, Any], path: str | os.PathLike[str]) -> None:
    differences = _differences(saved["config"], own["config"])
    if not differences and saved["weights"] != own["weights"]:
        differences = "the same hyper-parameters, but other weights"
    if differences:
        raise ValueError(
            f"{os.fspath(path)} was saved by a stream of another model: {differences}. Load it into a "
            "stream of the model that it was saved from."
        )


def _layers_are_alike(layout: dict[str, Any]) -> bool:
    return all(layer == layout["layers"][0] for layer in layout["layers"])


def _settings(layout: dict[str, Any], alike: bool) -> dict[str, Any]:
    """Return a layout's settings by name, each layer's own unless they are ``alike``."""
    settings = {name: value for name, value in layout.items() if name != "layers"}
    layers: list[dict[str, Any]] = layout["layers"]
    settings["n_layer"] = len(layers)
    if alike:
        return settings | layers[0]
    return settings | {
        f"layers[{i}].{name}": value for i, layer in enumerate(layers) for name, value in layer.items()
    }


def _differences(saved: dict[str, Any], own: dict[str, Any]) -> str:
    """Say which settings differ, as in "window is 60 there and 8 here"."""
    absent = object()

    def show(value: object) -> str:
        return "absent" if value is absent else repr(value)

    names = [name for name in {**saved, **own} if saved.get(name, absent) != own.get(name, absent)]
    return ", ".join(
        f"{name} is {show(saved.get(name, absent))} there and {show(own.get(name, absent))} here"
        for name in names
    )
