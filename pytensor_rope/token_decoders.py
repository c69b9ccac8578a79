"""
Tokens to text, one at a time, as Hugging Face's tokenizers turn all of them.

A decoder there is a chain of steps over a list of tokens. Here each step takes one token, gives what is
certain whatever follows, and holds back the rest. The ``tokenizers`` package streams too
(``DecodeStream``), but holds a text that ends in U+FFFD back for ever and decodes it again at each token.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol


class Step(Protocol):
    """One step of a decoder: tokens in, tokens out."""

    def push(self, token: str) -> list[str]:
        """Return what is certain with this token."""
        ...

    def flush(self) -> list[str]:
        """Return what was held back: no token follows."""
        ...


class TokenDecoder:
    """
    Tokens to text, one at a time.

    Parameters
    ----------
    decoder : mapping or None
        A decoder as ``tokenizer.json`` writes it; None joins tokens with spaces.

    Raises
    ------
    ValueError
        If a step of the decoder isn't implemented.

    Examples
    --------
    >>> from pytensor_rope.token_decoders import TokenDecoder
    >>> decoder = TokenDecoder({"type": "ByteLevel"})
    >>> [decoder.push("Ã"), decoder.push("©"), decoder.flush()]
    ['', 'é', '']
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self._decoder = decoder
        self._steps = _chain(decoder)

    def push(self, token: str) -> str:
        """Return the text that is certain with this token."""
        return "".join(_run(self._steps, [token]))

    def flush(self) -> str:
        """Return the text that was held back, and begin anew."""
        tokens: list[str] = []
        for step in self._steps:
            tokens = [*_run([step], tokens), *step.flush()]
        self._steps = _chain(self._decoder)
        return "".join(tokens)


def _run(steps: Iterable[Step], tokens: list[str]) -> list[str]:
    for step in steps:
        tokens = [piece for token in tokens for piece in step.push(token)]
    return tokens


def _chain(decoder: Mapping[str, Any] | None) -> list[Step]:
    if decoder is None:
        return [_FirstDiffers(lambda token: token, lambda token: f" {token}")]
    specs = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    steps: list[Step] = []
    # Behind a step that joins all tokens, what comes are parts of one token.
    joined = False
    for spec in specs:
        kind = spec["type"]
        if kind == "Fuse":
            joined = True
            continue
        build = (_JOINED_STEPS if joined else _STEPS).get(kind)
        if build is None:
            where = " behind a step that joins all tokens" if joined and kind in _STEPS else ""
            raise ValueError(f"the tokenizer's decoder {kind!r}{where} isn't implemented.")
        steps.append(build(spec))
        joined = joined or kind == "ByteLevel"
    return steps


class _ByteLevel:
    """Characters of the byte-level alphabet to bytes, and these to text."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> list[str]:
        try:
            data = bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            # Not in the alphabet: an added token, which stands for itself.
            data = token.encode()
        return [self._utf8.decode(data)]

    def flush(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback:
    """
    Runs of tokens ``<0xNN>`` to the characters that their bytes are.

    A run that isn't UTF-8 becomes one U+FFFD a byte, so a run is certain when it ends.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._run = bytearray()

    def push(self, token: str) -> list[str]:
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is None:
            return [*self.flush(), token]
        self._run.append(int(byte[1], 16))
        return []

    def flush(self) -> list[str]:
        run, self._run = bytes(self._run), bytearray()
        if not run:
            return []
        try:
            return [run.decode()]
        except UnicodeDecodeError:
            return ["\ufffd"] * len(run)


class _EachToken:
    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def push(self, token: str) -> list[str]:
        return [self._change(token)]

    def flush(self) -> list[str]:
        return []


class _FirstDiffers:
    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._change, self._later = first, later

    def push(self, token: str) -> list[str]:
        text = self._change(token)
        self._change = self._later
        return [text]

    def flush(self) -> list[str]:
        return []


class _LastDiffers:
    def __init__(self, last: Callable[[str], str], earlier: Callable[[str], str]) -> None:
        self._last, self._earlier = last, earlier
        self._held: list[str] = []

    def push(self, token: str) -> list[str]:
        held, self._held = self._held, [token]
        return [self._earlier(earlier) for earlier in held]

    def flush(self) -> list[str]:
        return [self._last(last) for last in self._held]


class _StripJoined:
    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._content, self._start, self._stop = spec["content"], spec["start"], spec["stop"]
        self._held = ""

    def push(self, token: str) -> list[str]:
        while self._start and token:
            if token[0] != self._content:
                self._start = 0
                break
            self._start -= 1
            token = token[1:]
        text = self._held + token
        certain = len(text) - _n_at_end(text, self._content, self._stop)
        self._held = text[certain:]
        return [text[:certain]]

    def flush(self) -> list[str]:
        return []


class _ReplaceJoined:
    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._pattern, self._content = spec["pattern"].get("String"), spec["content"]
        if not self._pattern:
            raise ValueError(
                "the tokenizer's decoder 'Replace' with a regular expression behind a step that joins all "
                "tokens isn't implemented."
            )
        self._held = ""

    def push(self, token: str) -> list[str]:
        *before, rest = (self._held + token).split(self._pattern)
        certain = max(len(rest) - len(self._pattern) + 1, 0)
        self._held = rest[certain:]
        return [self._content.join([*before, rest[:certain]])]

    def flush(self) -> list[str]:
        return [self._held]


def _replace(spec: Mapping[str, Any]) -> Step:
    from tokenizers import Regex, decoders

    (kind, pattern), content = next(iter(spec["pattern"].items())), spec["content"]
    if kind == "String" and pattern:
        return _EachToken(lambda token: token.replace(pattern, content))
    replace = decoders.Replace(Regex(pattern) if kind == "Regex" else pattern, content)
    return _EachToken(lambda token: replace.decode([token]))


def _strip(spec: Mapping[str, Any]) -> Step:
    content, start, stop = spec["content"], spec["start"], spec["stop"]

    def strip(token: str) -> str:
        n_first = min(len(token) - len(token.lstrip(content)), start)
        return token[n_first : len(token) - _n_at_end(token[n_first:], content, stop)]

    return _EachToken(strip)


def _n_at_end(text: str, content: str, most: int) -> int:
    return min(len(text) - len(text.rstrip(content)), most)


def _word_piece(spec: Mapping[str, Any]) -> Step:
    from tokenizers import decoders

    return _by_position(decoders.WordPiece(prefix=spec["prefix"], cleanup=spec["cleanup"]))


def _metaspace(spec: Mapping[str, Any]) -> Step:
    from tokenizers import decoders

    return _by_position(
        decoders.Metaspace(replacement=spec["replacement"], prepend_scheme=spec["prepend_scheme"])
    )


def _by_position(decoder: Any) -> Step:
    # Both leave a letter that comes before as it is.
    return _FirstDiffers(
        lambda token: decoder.decode([token]), lambda token: decoder.decode(["a", token]).removeprefix("a")
    )


def _word_end(spec: Mapping[str, Any]) -> Step:
    suffix = spec["suffix"]
    return _LastDiffers(lambda token: token.replace(suffix, ""), lambda token: token.replace(suffix, " "))


_STEPS: dict[str, Callable[[Mapping[str, Any]], Step]] = {
    "ByteLevel": _ByteLevel,
    "ByteFallback": _ByteFallback,
    "BPEDecoder": _word_end,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _word_piece,
}
_JOINED_STEPS: dict[str, Callable[[Mapping[str, Any]], Step]] = {
    "Replace": _ReplaceJoined,
    "Strip": _StripJoined,
}

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    # Printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()
