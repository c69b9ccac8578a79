"""Byte-level byte-pair encoders built from tokens and merges, as GGUF files hold them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytensor_rope.checkpoints.gguf.pretokenizers import splitting


def byte_pair_encoder(
    tokens: Sequence[str],
    merges: Sequence[str],
    pre: str,
    special_ids: Iterable[int] = (),
    user_ids: Iterable[int] = (),
    unused_ids: Iterable[int] = (),
) -> Any:
    """
    Build a byte-level byte-pair encoder.

    Parameters
    ----------
    tokens, merges, pre, special_ids, user_ids, unused_ids
        As :meth:`pytensor_rope.tokenizer.Tokenizer.byte_level` takes them.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    ValueError
        If ``pre`` is not implemented, if a token occurs twice, or if a merge does not belong to ``tokens``.
    ImportError
        If the ``tokenizers`` package is missing.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "A tokenizer needs the tokenizers package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    unused = frozenset(unused_ids)
    ids = {token: i for i, token in enumerate(tokens) if i not in unused}
    if len(ids) != len(tokens) - len(unused):
        raise ValueError("the tokenizer has a token twice.")
    split = splitting(pre)
    model = tokenizers.models.BPE(
        vocab=ids,
        merges=_pairs(merges, ids),
        ignore_merges=split.keeps_tokens,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = tokenizers.decoders.ByteLevel()
    if split.composes:
        backend.normalizer = split.normalizer()
    for kind, add, added in (
        (True, backend.add_special_tokens, special_ids),
        (False, backend.add_tokens, user_ids),
    ):
        add([tokenizers.AddedToken(tokens[i], special=kind, normalized=False) for i in added])
    return backend


def _pairs(merges: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ValueError(f"the merge {merge!r} doesn't belong to the vocabulary.")
        pairs.append((left, right))
    return pairs
