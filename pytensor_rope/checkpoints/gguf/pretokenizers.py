"""How byte-level tokenizers split text before they merge, by the names that GGUF files have for it."""

from dataclasses import dataclass
from typing import Any

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# Words with the character before them, digits in groups, punctuation, line ends.
_REST = r" ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_words(behind: str, digits: str) -> str:
    """Return the pattern of words that end where capitals begin, with ``behind`` belonging to the word."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{behind}|{before}{_UPPER}+{_LOWER}*{behind}"
    return rf"{words}|\p{{N}}{digits}|" + _REST.format(slash="/")


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """
    How text is split, and what goes with it.

    Parameters
    ----------
    patterns : tuple of str
        Regular expressions. Each splits what the one before left, into what it matches and what lies between.
    composes : bool, optional
        Whether characters are composed first (NFC). Default is False.
    keeps_tokens : bool, optional
        Whether a piece that is a token is taken as it is, whatever the merges would make of it. Default is
        False.
    begins : bool, optional
        Whether a text begins with a token, where the file doesn't say. Default is False.
    """

    patterns: tuple[str, ...]
    composes: bool = False
    keeps_tokens: bool = False
    begins: bool = False

    def normalizer(self) -> Any:
        """Return the normalizer of the ``tokenizers`` package, None for none."""
        from tokenizers import normalizers

        return normalizers.NFC() if self.composes else None

    def pre_tokenizer(self) -> Any:
        """Return the pre-tokenizer of the ``tokenizers`` package."""
        from tokenizers import Regex, pre_tokenizers

        steps = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*steps, to_bytes])


_ONE, _TO_THREE = _WORDS.format(digits="", slash=""), _WORDS.format(digits="{1,3}", slash="")
_LLAMA3 = Splitting(patterns=(_TO_THREE,), keeps_tokens=True, begins=True)
_GPT4O = Splitting(patterns=(_cased_words(f"{_CONTRACTIONS}?", "{1,3}"),))

# Whether characters are composed is what transformers has for the family: llama.cpp composes none.
_SPLITTINGS = {
    "gpt-2": Splitting(patterns=(_GPT2,)),
    "phi-2": Splitting(patterns=(_GPT2,)),
    # The tokenizer of GPT-NeoX, Pythia, OLMo and MPT.
    "olmo": Splitting(patterns=(_GPT2,), composes=True),
    "mpt": Splitting(patterns=(_GPT2,), composes=True),
    "smollm": Splitting(patterns=(_DIGIT, _GPT2)),
    "starcoder": Splitting(patterns=(_DIGIT, _GPT2)),
    "refact": Splitting(patterns=(_DIGIT, _GPT2)),
    "command-r": Splitting(patterns=(_DIGIT, _GPT2), composes=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": Splitting(patterns=(_TO_THREE,)),
    "smaug-bpe": Splitting(patterns=(_TO_THREE,)),
    "chatglm-bpe": Splitting(patterns=(_TO_THREE,)),
    "glm4": Splitting(patterns=(_TO_THREE,), keeps_tokens=True),
    "qwen2": Splitting(patterns=(_ONE,), composes=True),
    "deepseek-r1-qwen": Splitting(patterns=(_ONE,), composes=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": Splitting(patterns=(_cased_words("", ""),), keeps_tokens=True, begins=True),
    # What llama.cpp does with files that don't say better.
    "default": Splitting(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}


def splitting(pre: str) -> Splitting:
    """
    Return how text is split before merging.

    Parameters
    ----------
    pre : str
        The name in a file, its ``tokenizer.ggml.pre``.

    Returns
    -------
    Splitting

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    if pre not in _SPLITTINGS:
        raise ValueError(
            f"the pre-tokenizer {pre!r} isn't implemented; implemented: {', '.join(map(repr, _SPLITTINGS))}."
        )
    return _SPLITTINGS[pre]
