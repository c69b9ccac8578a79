"""Text to token ids and back, and conversations to prompts."""

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from pytensor_rope.byte_level import byte_pair_encoder
from pytensor_rope.chat_template import render_chat
from pytensor_rope.token_decoders import TokenDecoder


class Tokenizer:
    """
    Text to token ids and back, with special tokens and a chat template.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        What splits text into tokens: byte-pair encoding, Unigram, WordPiece or WordLevel.
    vocab_size : int, optional
        Number of the model's token ids. Default is the tokenizer's.
    bos_id : int, optional
        Id of the token that begins a text. Default is None.
    eos_ids : iterable of int, optional
        Ids of the tokens that end a turn or a text.
    chat_template : str, optional
        Jinja template of a conversation.
    template_names : mapping of str to Any, optional
        What the chat template may ask for, such as ``"bos_token"``.

    Raises
    ------
    ValueError
        If an id does not belong to the vocabulary, if the tokenizer has more tokens than the model has ids,
        or if its decoder isn't implemented.

    Examples
    --------
    >>> from pytensor_rope.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.byte_level(["h", "i", "hi", "<end>"], ["h i"], "smollm", special_ids=[3])
    >>> tokenizer.encode("hi<end>")
    [2, 3]
    >>> tokenizer.decode([2, 3])
    'hi'
    """

    def __init__(
        self,
        backend: Any,
        *,
        vocab_size: int | None = None,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
        template_names: Mapping[str, Any] | None = None,
    ) -> None:
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.chat_template = chat_template
        self._template_names = dict(template_names or {})
        self._backend = backend
        self._decoder = _decoder(backend)
        TokenDecoder(self._decoder)
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)
        largest = max(backend.get_vocab().values(), default=-1)
        self._vocab_size = largest + 1 if vocab_size is None else vocab_size
        self._may_exceed = largest >= self._vocab_size
        if self._may_exceed:
            self._check_own_tokens()
        for token_id in [*self.eos_ids, *([] if bos_id is None else [bos_id])]:
            _check_id(token_id, self._vocab_size)

    @classmethod
    def byte_level(
        cls,
        tokens: Sequence[str],
        merges: Sequence[str],
        pre: str,
        *,
        special_ids: Iterable[int] = (),
        user_ids: Iterable[int] = (),
        unused_ids: Iterable[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> Self:
        """
        Build a byte-level byte-pair encoder.

        Parameters
        ----------
        tokens : sequence of str
            The token of each id, in the byte-level alphabet.
        merges : sequence of str
            Pairs of tokens that are merged, ``"left right"``, most eager first.
        pre : str
            How text is split before merging, by its name in GGUF files, for example ``"smollm"``,
            ``"gpt-2"``, ``"llama-bpe"`` or ``"qwen2"``.
        special_ids : iterable of int, optional
            Ids of special tokens: recognized in text as they stand, left out of decoded text.
        user_ids : iterable of int, optional
            Ids of tokens that are recognized as they stand and belong to the text.
        unused_ids : iterable of int, optional
            Ids that stand for no token, whatever ``tokens`` has for them.
        bos_id : int, optional
            Id of the token that begins a text. Default is None.
        add_bos : bool, optional
            Whether encoding begins with it. Default is False.
        eos_ids : iterable of int, optional
            Ids of the tokens that end a turn or a text.
        chat_template : str, optional
            Jinja template of a conversation.

        Returns
        -------
        Tokenizer

        Raises
        ------
        ValueError
            If ``pre`` is not implemented, if a token occurs twice, if a merge or an id does not belong
            to ``tokens``, or if ``add_bos`` is asked without ``bos_id``.
        ImportError
            If the ``tokenizers`` package is missing.
        """
        if add_bos and bos_id is None:
            raise ValueError("the tokenizer begins every text with a token, but doesn't say which.")
        special_ids, user_ids, eos_ids = list(special_ids), list(user_ids), list(eos_ids)
        bos_ids = [] if bos_id is None else [bos_id]
        for token_id in [*special_ids, *user_ids, *eos_ids, *bos_ids]:
            _check_id(token_id, len(tokens))
        backend = byte_pair_encoder(tokens, merges, pre, special_ids, user_ids, unused_ids)
        if add_bos:
            surround(backend, bos_ids, [])
        return cls(
            backend,
            vocab_size=len(tokens),
            bos_id=bos_id,
            eos_ids=eos_ids,
            chat_template=chat_template,
            template_names={
                name: tokens[ids[0]] for name, ids in (("bos_token", bos_ids), ("eos_token", eos_ids)) if ids
            },
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids: the model's, some of which may stand for no token."""
        return self._vocab_size

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
            Whether to add the tokens that the model begins and ends a text with, if it has any. A prompt
            made by :meth:`apply_chat_template` has them already. Default is True.

        Returns
        -------
        list of int

        Raises
        ------
        ValueError
            If the text holds a lone surrogate, which no UTF-8 text can, or a token that the tokenizer has
            and the model has not.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode: {error}.") from error
        with plain_errors("the tokenizer can't encode the text"):
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special).ids
        if self._may_exceed and max(ids, default=0) >= self._vocab_size:
            raise ValueError(
                f"the text has the token {self._backend.id_to_token(max(ids))!r}, whose id {max(ids)} the "
                f"model doesn't have: its ids are 0..{self._vocab_size - 1}."
            )
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
            Bytes that are not UTF-8 become U+FFFD; ids that stand for no token are left out.

        Raises
        ------
        ValueError
            If an id is outside the vocabulary.
        """
        stream = self.stream_decoder(skip_special)
        pieces = [stream.push(token_id) for token_id in ids]
        return "".join([*pieces, stream.flush()])

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
        return render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            names=self._template_names,
        )

    def _check_own_tokens(self) -> None:
        """Refuse a tokenizer of another model; tokens that were added for other uses may exceed it."""
        largest = max(self._backend.get_vocab(with_added_tokens=False).values(), default=-1)
        with plain_errors("the tokenizer can't encode an empty text"):
            added_to_each_text = self._backend.encode("", add_special_tokens=True).ids
        largest = max(largest, *added_to_each_text) if added_to_each_text else largest
        if largest >= self._vocab_size:
            raise ValueError(
                f"the tokenizer has the token {self._backend.id_to_token(largest)!r} of id {largest} and the "
                f"model only ids 0..{self._vocab_size - 1}: they don't belong together."
            )

    def _token(self, token_id: int, skip_special: bool) -> str | None:
        """Return the token of an id, None if it gives no text."""
        token_id = operator.index(token_id)
        _check_id(token_id, self._vocab_size)
        if skip_special and token_id in self._special:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token


class StreamDecoder:
    """
    Token ids to text, one at a time, as soon as it is certain.

    A character may take several tokens; its text comes with the last of them. Where bytes are tokens of
    their own (``<0x0A>``), a run of them comes with the token behind it. The texts that ``push`` and
    ``flush`` return, joined, are what :meth:`Tokenizer.decode` gives.

    Parameters
    ----------
    tokenizer : Tokenizer
        Where the ids come from.
    skip_special : bool, optional
        Whether to leave special tokens out. Default is True.

    Examples
    --------
    >>> from pytensor_rope.tokenizer import Tokenizer
    >>> stream = Tokenizer.byte_level(["Ã", "©"], [], "smollm").stream_decoder()
    >>> [stream.push(0), stream.push(1), stream.flush()]
    ['', 'é', '']
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._text = TokenDecoder(tokenizer._decoder)

    def push(self, token_id: int) -> str:
        """Return the text that is certain with this token, maybe empty."""
        token = self._tokenizer._token(token_id, self._skip_special)
        return "" if token is None else self._text.push(token)

    def flush(self) -> str:
        """Return the text that was held back, U+FFFD for an incomplete character, and begin anew."""
        return self._text.flush()


def surround(backend: Any, before: Sequence[int], behind: Sequence[int]) -> None:
    """Have ``backend`` add these tokens to each text, and no others."""
    from tokenizers import processors

    ends = {name: list(ids) for name, ids in (("before", before), ("behind", behind)) if ids}
    backend.post_processor = processors.TemplateProcessing(
        single=[*(["before"] if before else []), "$A", *(["behind"] if behind else [])],
        special_tokens=[
            {"id": name, "ids": ids, "tokens": [backend.id_to_token(i) for i in ids]}
            for name, ids in ends.items()
        ],
    )


@contextmanager
def plain_errors(what: str) -> Iterator[None]:
    """Make a ValueError of what the tokenizers package raises: plain exceptions, and panics of its Rust."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what}: {error}") from error


def _decoder(backend: Any) -> dict[str, Any] | None:
    if backend.decoder is None:
        return None
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return decoder


def _check_id(token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise ValueError(f"token ids must be in 0..{vocab_size - 1}, the vocabulary; got {token_id}.")
