"""The tokenizer in a GGUF file's metadata."""

from typing import Any

import numpy as np

from pytensor_rope.checkpoints.base import CheckpointError, Metadata
from pytensor_rope.tokenizer import Tokenizer

_SPECIAL, _USER_DEFINED = 3, 4
_REQUIRED: Any = object()


def read_tokenizer(metadata: Metadata) -> Tokenizer:
    """
    Build the tokenizer that a GGUF file describes.

    Parameters
    ----------
    metadata : dict
        The file's metadata; ``tokenizer.*`` is read.

    Returns
    -------
    Tokenizer

    Raises
    ------
    ValueError
        If the metadata lack something, contradict themselves, or ask for a tokenizer that isn't
        implemented.
    """
    model = _value(metadata, "ggml.model", str)
    if model != "gpt2":
        raise CheckpointError(f"the tokenizer model {model!r} isn't implemented; 'gpt2' (byte-level BPE) is.")
    if _value(metadata, "ggml.add_eos_token", bool, False):
        raise CheckpointError("tokenizer.ggml.add_eos_token isn't implemented.")
    tokens = _value(metadata, "ggml.tokens", list)
    types = _value(metadata, "ggml.token_type", np.ndarray).tolist()
    if len(types) != len(tokens):
        raise CheckpointError(f"there are {len(tokens)} tokens and {len(types)} token types.")
    pre = _value(metadata, "ggml.pre", str)
    ends = [_value(metadata, f"ggml.{end}_token_id", int, None) for end in ("eos", "eot", "eom")]
    return Tokenizer(
        tokens,
        _value(metadata, "ggml.merges", list),
        pre,
        special_ids=[i for i, kind in enumerate(types) if kind == _SPECIAL],
        user_ids=[i for i, kind in enumerate(types) if kind == _USER_DEFINED],
        bos_id=_value(metadata, "ggml.bos_token_id", int, None),
        # llama.cpp's default: of these pre-tokenizers only Llama 3's begins with a token.
        add_bos=_value(metadata, "ggml.add_bos_token", bool, pre == "llama-bpe"),
        eos_ids=dict.fromkeys(end for end in ends if end is not None),
        chat_template=_value(metadata, "chat_template", str, None),
    )


def _value(metadata: Metadata, key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = metadata.get(f"tokenizer.{key}", default)
    if value is _REQUIRED:
        raise CheckpointError(f"the metadata lack tokenizer.{key}.")
    if value is not default and type(value) is not kind:
        raise CheckpointError(f"tokenizer.{key} has the wrong type, {type(value).__name__}.")
    return value
