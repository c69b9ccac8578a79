"""The tokenizer in a GGUF file's metadata."""

from typing import Any

import numpy as np

from pytensor_rope.checkpoints.base import CheckpointError, Metadata
from pytensor_rope.checkpoints.gguf.pretokenizers import splitting
from pytensor_rope.checkpoints.gguf.spm import score_encoder
from pytensor_rope.tokenizer import Tokenizer, surround

_SPECIAL, _USER_DEFINED, _UNUSED = 3, 4, 5
# What ends a turn, where the metadata don't have it: llama.cpp knows it by its text too.
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
_REQUIRED: Any = object()


def read_tokenizer(metadata: Metadata) -> Tokenizer | None:
    """
    Build the tokenizer that a GGUF file describes.

    Parameters
    ----------
    metadata : dict
        The file's metadata; ``tokenizer.*`` is read.

    Returns
    -------
    Tokenizer or None
        None if the file says that it has none.

    Raises
    ------
    ValueError
        If the metadata lack something, contradict themselves, or ask for a tokenizer that isn't
        implemented.
    """
    model = _value(metadata, "ggml.model", str)
    if model in ("none", "no_vocab"):
        return None
    if model not in _MODELS:
        raise CheckpointError(
            f"the tokenizer model {model!r} isn't implemented; 'gpt2' (byte-level BPE) and 'llama' "
            f"(SentencePiece) are."
        )
    if _value(metadata, "ggml.add_eos_token", bool, False):
        raise CheckpointError("tokenizer.ggml.add_eos_token isn't implemented.")
    tokens = _value(metadata, "ggml.tokens", list)
    types = _value(metadata, "ggml.token_type", np.ndarray).tolist()
    if len(types) != len(tokens):
        raise CheckpointError(f"there are {len(tokens)} tokens and {len(types)} token types.")
    return _MODELS[model](metadata, tokens, types)


def _byte_level(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    pre = _value(metadata, "ggml.pre", str)
    return Tokenizer.byte_level(
        tokens,
        _value(metadata, "ggml.merges", list),
        pre,
        special_ids=[i for i, kind in enumerate(types) if kind == _SPECIAL],
        user_ids=[i for i, kind in enumerate(types) if kind == _USER_DEFINED],
        unused_ids=[i for i, kind in enumerate(types) if kind == _UNUSED],
        bos_id=_value(metadata, "ggml.bos_token_id", int, None),
        add_bos=_value(metadata, "ggml.add_bos_token", bool, splitting(pre).begins),
        eos_ids=_end_ids(metadata, tokens, types),
        chat_template=_value(metadata, "chat_template", str, None),
    )


def _by_score(metadata: Metadata, tokens: list[str], types: list[int]) -> Tokenizer:
    pre = _value(metadata, "ggml.pre", str, "default")
    if pre != "default":
        raise CheckpointError(f"the pre-tokenizer {pre!r} isn't implemented for the tokenizer model 'llama'.")
    if _value(metadata, "ggml.remove_extra_whitespaces", bool, False):
        raise CheckpointError("tokenizer.ggml.remove_extra_whitespaces isn't implemented.")
    scores = _value(metadata, "ggml.scores", np.ndarray).tolist()
    if len(scores) != len(tokens):
        raise CheckpointError(f"there are {len(tokens)} tokens and {len(scores)} scores.")
    backend = score_encoder(
        tokens,
        scores,
        types,
        add_space_prefix=_value(metadata, "ggml.add_space_prefix", bool, True),
        stripping_ids=_stripping_ids(tokens, types) if metadata.get("general.architecture") == "phi3" else (),
    )
    # llama.cpp's defaults.
    bos_id = _value(metadata, "ggml.bos_token_id", int, 1)
    ends = _end_ids(metadata, tokens, types) or (2,)
    for token_id in (bos_id, *ends):
        if not 0 <= token_id < len(tokens):
            raise CheckpointError(
                f"token ids must be in 0..{len(tokens) - 1}, the vocabulary; got {token_id}."
            )
    if _value(metadata, "ggml.add_bos_token", bool, True):
        surround(backend, [bos_id], [])
    return Tokenizer(
        backend,
        vocab_size=len(tokens),
        bos_id=bos_id,
        eos_ids=ends,
        chat_template=_value(metadata, "chat_template", str, None),
        template_names={"bos_token": tokens[bos_id], "eos_token": tokens[ends[0]]},
    )


_MODELS = {"gpt2": _byte_level, "llama": _by_score}


def _stripping_ids(tokens: list[str], types: list[int]) -> list[int]:
    """Return Phi 3's tokens behind which it leaves out white space, which the metadata don't say."""
    others = ("<unk>", "<s>", "<|endoftext|>")
    kinds = (_SPECIAL, _USER_DEFINED)
    return [i for i, kind in enumerate(types) if kind in kinds and tokens[i] not in others]


def _end_ids(metadata: Metadata, tokens: list[str], types: list[int]) -> tuple[int, ...]:
    named = [_value(metadata, f"ggml.{end}_token_id", int, None) for end in ("eos", "eot", "eom")]
    ends = [end for end in named if end is not None]
    if _value(metadata, "ggml.eot_token_id", int, None) is None:
        added = (i for i, kind in enumerate(types) if kind in (_SPECIAL, _USER_DEFINED))
        ends += [i for i in added if tokens[i] in _ENDS_OF_TURN]
    return tuple(dict.fromkeys(ends))


def _value(metadata: Metadata, key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = metadata.get(f"tokenizer.{key}", default)
    if value is _REQUIRED:
        raise CheckpointError(f"the metadata lack tokenizer.{key}.")
    if value is not default and type(value) is not kind:
        raise CheckpointError(f"tokenizer.{key} has the wrong type, {type(value).__name__}.")
    return value
