"""Text to token ids and back, and conversations to prompts."""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

# Contractions, words with the character before them, digits in groups, punctuation, line ends.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """
    Byte-level byte-pair encoding with special tokens and a chat template.

    Parameters
    ----------
    tokens : sequence of str
        The token of each id, in the byte-level alphabet.
    merges : sequence of str
        Pairs of tokens that are merged, ``"left right"``, most eager first.
    pre : str
        How text is split before merging, by its name in GGUF files: ``"smollm"``, ``"gpt-2"``,
        ``"llama-bpe"`` or ``"qwen2"``.
    special_ids : iterable of int, optional
        Ids of special tokens: recognized in text as they stand, left out of decoded text.
    user_ids : iterable of int, optional
        Ids of tokens that are recognized as they stand and belong to the text.
    bos_id : int, optional
        Id of the token that begins a text. Default is None.
    add_bos : bool, optional
        Whether encoding begins with it. Default is False.
    eos_ids : iterable of int, optional
        Ids of the tokens that end a turn or a text.
    chat_template : str, optional
        Jinja template of a conversation.

    Raises
    ------
    ValueError
        If ``pre`` is not implemented, if a token occurs twice, if a merge or an id does not belong
        to ``tokens``, or if ``add_bos`` is asked without ``bos_id``.
    ImportError
        If the ``tokenizers`` package is missing.

    Examples
    --------
    >>> from pytensor_rope.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer(["h", "i", "hi", "<end>"], ["h i"], "smollm", special_ids=[3])
    >>> tokenizer.encode("hi<end>")
    [2, 3]
    >>> tokenizer.decode([2, 3])
    'hi'
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        pre: str,
        *,
        special_ids: Iterable[int] = (),
        user_ids: Iterable[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> None:
        self._tokens = list(tokens)
        self._special = frozenset(special_ids)
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self._add_bos = add_bos
        self.chat_template = chat_template
        if add_bos and bos_id is None:
            raise ValueError("the tokenizer begins every text with a token, but doesn't say which.")
        user_ids = list(user_ids)
        named = [*self._special, *user_ids, *self.eos_ids, *([] if bos_id is None else [bos_id])]
        for token_id in named:
            self._check_id(token_id)
        self._backend = _byte_pair_encoder(self._tokens, merges, pre, self._special, user_ids)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self._tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """
        Return the token ids of a text.

        Special tokens in the text are recognized. Bytes that the vocabulary has no token for are
        left out, as Hugging Face's tokenizers do; SmolLM2 lacks a few control characters.

        Parameters
        ----------
        text : str
            The text.
        add_special : bool, optional
            Whether to begin with the model's first token, if it has one. A prompt made by
            :meth:`apply_chat_template` already does. Default is True.

        Returns
        -------
        list of int

        Raises
        ------
        ValueError
            If the text holds a lone surrogate, which no UTF-8 text can.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode: {error}.") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if add_special and self._add_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """
        Return the text of token ids.

        Parameters
        ----------
        ids : iterable of int
            Token ids.
        skip_special : bool, optional
            Whether to leave special tokens out. Default is True.

        Returns
        -------
        str
            Bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        ValueError
            If an id is outside the vocabulary.
        """
        text = b"".join(self._bytes(token_id, skip_special) for token_id in ids)
        return text.decode("utf-8", "replace")

    def stream_decoder(self, skip_special: bool = True) -> "StreamDecoder":
        """
        Return a decoder that takes one id at a time.

        Parameters
        ----------
        skip_special : bool, optional
            Whether to leave special tokens out. Default is True.

        Returns
        -------
        StreamDecoder
        """
        return StreamDecoder(self, skip_special)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """
        Write a conversation as the model was trained to read it.

        Parameters
        ----------
        messages : sequence of mapping
            For each message its ``"role"`` (``"system"``, ``"user"`` or ``"assistant"``) and its
            ``"content"``.
        add_generation_prompt : bool, optional
            Whether to end with the beginning of the assistant's turn. Default is True.

        Returns
        -------
        str
            The prompt, to be encoded with ``add_special=False``.

        Raises
        ------
        ValueError
            If there is no chat template, or if it refuses the messages.
        ImportError
            If the ``jinja2`` package is missing.
        """
        if self.chat_template is None:
            raise ValueError("the model has no chat template: write the prompt as plain text.")
        environment = _template_environment()
        names = {
            "bos_token": None if self.bos_id is None else self._tokens[self.bos_id],
            "eos_token": self._tokens[self.eos_ids[0]] if self.eos_ids else None,
        }
        try:
            prompt: str = environment.from_string(self.chat_template).render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **{name: token for name, token in names.items() if token is not None},
            )
        # A template is a program: it may fail in any way.
        except Exception as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        return prompt

    def _bytes(self, token_id: int, skip_special: bool) -> bytes:
        self._check_id(token_id)
        if skip_special and token_id in self._special:
            return b""
        token = self._tokens[token_id]
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            # Not in the byte-level alphabet: an added token, which stands for itself.
            return token.encode()

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._tokens):
            raise ValueError(
                f"token ids must be in 0..{len(self._tokens) - 1}, the vocabulary; got {token_id}."
            )


class StreamDecoder:
    """
    Token ids to text, one at a time, in whole characters.

    A character may take several tokens; its text comes with the last of them. The texts that
    ``push`` and ``flush`` return, joined, are what :meth:`Tokenizer.decode` gives.

    Parameters
    ----------
    tokenizer : Tokenizer
        Where the ids come from.
    skip_special : bool, optional
        Whether to leave special tokens out. Default is True.

    Examples
    --------
    >>> from pytensor_rope.tokenizer import Tokenizer
    >>> stream = Tokenizer(["Ã", "©"], [], "smollm").stream_decoder()
    >>> [stream.push(0), stream.push(1), stream.flush()]
    ['', 'é', '']
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that is complete with this token, maybe empty."""
        return self._utf8.decode(self._tokenizer._bytes(token_id, self._skip_special))

    def flush(self) -> str:
        """Return U+FFFD for a character that stayed incomplete, and begin anew."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _byte_pair_encoder(
    tokens: list[str],
    merges: Sequence[str],
    pre: str,
    special_ids: Iterable[int],
    user_ids: Iterable[int],
) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "A tokenizer needs the tokenizers package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ValueError("the tokenizer has a token twice.")
    normalizer, pre_tokenizer = _splitting(pre)
    model = tokenizers.models.BPE(
        vocab=ids,
        merges=_pairs(merges, ids),
        # Llama 3 takes a word that is a token as it is, whatever the merges would make of it.
        ignore_merges=pre == "llama-bpe",
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    for kind, add, added in (
        (True, backend.add_special_tokens, special_ids),
        (False, backend.add_tokens, user_ids),
    ):
        add([tokenizers.AddedToken(tokens[i], special=kind, normalized=False) for i in added])
    return backend


def _splitting(pre: str) -> tuple[Any, Any]:
    from tokenizers import Regex, normalizers, pre_tokenizers

    def split(pattern: str) -> Any:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match pre:
        case "gpt-2":
            return None, byte_level
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return None, pre_tokenizers.Sequence([digits, byte_level])
        case "llama-bpe":
            return None, split(_WORDS.format(digits="{1,3}"))
        case "qwen2":
            return normalizers.NFC(), split(_WORDS.format(digits=""))
    raise ValueError(
        f"the pre-tokenizer {pre!r} isn't implemented; implemented: 'smollm', 'gpt-2', 'llama-bpe', 'qwen2'."
    )


def _pairs(merges: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ValueError(f"the merge {merge!r} doesn't belong to the vocabulary.")
        pairs.append((left, right))
    return pairs


def _template_environment() -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError(
            "A chat template needs the jinja2 package: pip install 'pytensor-rope[checkpoints]'."
        ) from error

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own filter escapes for HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _byte_level_alphabet() -> dict[str, int]:
    # Printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()
