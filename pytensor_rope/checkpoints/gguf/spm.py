"""Tokenizers that merge by score, as SentencePiece does: those of Llama 2, Mistral, Gemma and Phi 3."""

from collections.abc import Iterable, Sequence
from typing import Any

_SPACE = "\u2581"
_NORMAL, _UNKNOWN, _SPECIAL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def score_encoder(
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    add_space_prefix: bool,
    stripping_ids: Iterable[int] = (),
) -> Any:
    """
    Build an encoder that merges the neighbours whose token has the highest score, until none have one.

    Parameters
    ----------
    tokens : sequence of str
        The token of each id, with U+2581 for a space.
    scores : sequence of float
        The score of each.
    types : sequence of int
        Its type: 1 for a normal token, 2 for the unknown one, 3 for special ones, 4 for those recognized as
        they stand, 5 for an id that stands for no token, 6 for a byte.
    add_space_prefix : bool
        Whether text begins with a space that isn't its own, as it does behind a special token too.
    stripping_ids : iterable of int, optional
        Ids of special tokens behind which white space in the text is left out.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    ValueError
        If a token occurs twice, if a type is unknown, or if only some of the bytes have a token.
    ImportError
        If the ``tokenizers`` package is missing.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    except ImportError as error:
        raise ImportError(
            "A tokenizer needs the tokenizers package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    # Tokens that are recognized as they stand are looked for before spaces are replaced.
    texts = [
        token.replace(_SPACE, " ") if kind == _USER_DEFINED else token
        for token, kind in zip(tokens, types, strict=True)
    ]
    vocabulary = _vocabulary(texts, types)
    unknown = next((text for text, kind in zip(texts, types, strict=True) if kind == _UNKNOWN), None)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(texts, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_has_bytes(vocabulary, types),
        )
    )
    prefix = [normalizers.Prepend(_SPACE)] if add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if add_space_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    stripping = frozenset(stripping_ids)
    added = [
        AddedToken(text, special=kind != _USER_DEFINED, normalized=False, rstrip=i in stripping)
        for i, (text, kind) in enumerate(zip(texts, types, strict=True))
        if kind in (_UNKNOWN, _SPECIAL, _USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])
    return backend


def _vocabulary(texts: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    odd = sorted(set(types) - {_NORMAL, _UNKNOWN, _SPECIAL, _USER_DEFINED, _UNUSED, _BYTE})
    if odd:
        raise ValueError(f"the tokenizer has tokens of the unknown type {odd[0]}.")
    vocabulary: dict[str, int] = {}
    for i, (text, kind) in enumerate(zip(texts, types, strict=True)):
        if kind == _UNUSED:
            continue
        if text in vocabulary:
            raise ValueError(f"the tokenizer has the token {text!r} twice.")
        vocabulary[text] = i
    return vocabulary


def _has_bytes(vocabulary: dict[str, int], types: Sequence[int]) -> bool:
    n_byte = sum(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    if n_byte != sum(kind == _BYTE for kind in types) or n_byte not in (0, 256):
        raise ValueError(f"the tokenizer has tokens for {n_byte} of 256 bytes: it needs all or none.")
    return n_byte == 256


def _merges(texts: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Return which pairs of tokens merge, the highest score first."""
    normal = {text for text, kind in zip(texts, types, strict=True) if kind == _NORMAL}
    ranked = sorted(
        (i for i, kind in enumerate(types) if kind == _NORMAL and len(texts[i]) > 1), key=lambda i: -scores[i]
    )
    return [
        (texts[i][:split], texts[i][split:])
        for i in ranked
        for split in range(1, len(texts[i]))
        if texts[i][:split] in normal and texts[i][split:] in normal
    ]
