"""Rotary frequencies read from a model's configuration, whichever way it describes them."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, RotaryFrequencies
from pytensor_rope.checkpoints.gguf.rope import metadata_frequencies
from pytensor_rope.checkpoints.huggingface.rope import config_frequencies


def frequencies_from_config(
    config: Mapping[str, Any], *, layer_type: str | None = None, rope_freqs: npt.ArrayLike | None = None
) -> RotaryFrequencies:
    """
    Read the rotary frequencies from a Hugging Face ``config.json`` or from GGUF metadata.

    What isn't understood and may change the frequencies is refused: a misread rotation still writes fluent
    text, only a worse one.

    Parameters
    ----------
    config : mapping
        The parsed ``config.json``, in the keys of transformers 4 (``rope_scaling``, ``rope_theta``) or 5
        (``rope_parameters``), or the metadata of a GGUF file, which has the key ``general.architecture``.
    layer_type : str, optional
        Which layers to read it for, such as ``"full_attention"`` or ``"sliding_attention"``. Needed where the
        layers differ, as Gemma 3's do.
    rope_freqs : array_like, optional
        A GGUF file's tensor ``rope_freqs.weight``, of shape ``(rotary_dim // 2,)``. For LongRoPE the tensors
        ``rope_factors_short.weight`` and ``rope_factors_long.weight``, in this order, of shape
        ``(2, rotary_dim // 2)``.

    Returns
    -------
    RotaryFrequencies
        ``scaling``, ``base`` and ``rotary_dim``. Which dimensions make a pair isn't read.

    Raises
    ------
    CheckpointError
        If a key is missing or wrong, if two keys contradict each other, or if the configuration asks for
        something that isn't implemented. It is a ValueError, and names the key.

    References
    ----------
    .. [1] transformers 5.24.0, ``modeling_rope_utils.py`` and the configuration of each model.
    .. [2] llama.cpp, ``llama-model.cpp``, ``llama-context.cpp`` and ``ggml-cpu/ops.cpp``.
    .. [3] vLLM, ``telechat3_scaling_rope.py``, for ``telechat3-yarn``.

    Examples
    --------
    >>> from pytensor_rope import frequencies_from_config
    >>> config = {
    ...     "hidden_size": 4096,
    ...     "num_attention_heads": 32,
    ...     "rope_theta": 500000.0,
    ...     "rope_scaling": {"type": "linear", "factor": 4.0},
    ... }
    >>> frequencies_from_config(config)
    RotaryFrequencies(scaling=Linear(factor=4.0), base=500000.0, rotary_dim=128)
    """
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config must be a mapping of keys to values, as json.load gives it; got a "
            f"{type(config).__name__}."
        )
    try:
        return _read(config, layer_type, rope_freqs)
    except RecursionError as error:  # from showing a value
        raise CheckpointError("a value is nested too deeply to be one of a model's configuration.") from error


def _read(
    config: Mapping[str, Any], layer_type: str | None, rope_freqs: npt.ArrayLike | None
) -> RotaryFrequencies:
    if "general.architecture" in config:
        return metadata_frequencies(config, layer_type, rope_freqs)
    if rope_freqs is not None:
        raise CheckpointError(
            "rope_freqs is a tensor of GGUF files, and the configuration has no general.architecture: leave "
            "rope_freqs out, or give the metadata of the file that it comes from."
        )
    return config_frequencies(config, layer_type)
