"""Tokenizers of GGUF files: text split by hand, merges by score against a scalar encoder."""

import itertools

import numpy as np
import pytest

from pytensor_rope.checkpoints.gguf.spm import score_encoder
from pytensor_rope.checkpoints.gguf.tokenizer import read_tokenizer
from pytensor_rope.tokenizer import Tokenizer

SPACE = "\u2581"
NORMAL, UNKNOWN, SPECIAL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Every byte, and what splits differently in one tokenizer or another.
TEXT = "I'M he'll (don't) camelCase ABCdef x1234567 12.5 ...\n\n  a/b //\n \u00bd\u00b2 \u00e9\u00c9t\u00e9 "


def split(pre, text):
    """Return the pieces of a text that a tokenizer without merges takes apart into bytes."""
    backend = Tokenizer.byte_level([chr(0x100 + i) for i in range(2)], [], pre)._backend
    return [text[begin:end] for _, (begin, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("phi-2", "a 12b", ["a", " 12", "b"]),
        ("olmo", "a 12b", ["a", " 12", "b"]),
        ("mpt", "a'll", ["a", "'ll"]),
        ("starcoder", "a 12b", ["a", " ", "1", "2", "b"]),
        ("refact", "a 12b", ["a", " ", "1", "2", "b"]),
        ("command-r", "a 12b", ["a", " ", "1", "2", "b"]),
        ("llama3", "1234'S x", ["123", "4", "'S", " x"]),
        ("llama-v3", "(a)\n\n b", ["(a", ")\n\n", " b"]),
        ("dbrx", "1234'S x", ["123", "4", "'S", " x"]),
        ("smaug-bpe", "1234'S x", ["123", "4", "'S", " x"]),
        ("chatglm-bpe", "1234'S x", ["123", "4", "'S", " x"]),
        ("glm4", "1234'S x", ["123", "4", "'S", " x"]),
        ("deepseek-r1-qwen", "12'S x", ["1", "2", "'S", " x"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("llama4", "ABCdef a/b//\n", ["ABCdef", " a", "/b", "//\n"]),
        ("tekken", "camelCase's 12", ["camel", "Case", "'s", " ", "1", "2"]),
        ("tekken", "\u00e9\u00c9 ...\n/\n", ["\u00e9", "\u00c9", " ...\n/\n"]),
        ("default", "a+=b 12345", ["a", "+=", "b", " ", "123", "45"]),
        ("default", "don't", ["don", "'", "t"]),
    ],
)
def test_text_is_split_where_the_pre_tokenizer_says(pre, text, pieces):
    assert split(pre, text) == pieces
    assert "".join(split(pre, TEXT)) == TEXT


@pytest.mark.parametrize(
    ("pre", "composes"),
    [
        ("olmo", True),
        ("mpt", True),
        ("command-r", True),
        ("phi-2", False),
        ("dbrx", False),
        ("tekken", False),
    ],
)
def test_characters_are_composed_where_the_family_does(pre, composes):
    composed, apart = ["\u00c3", "\u00a9"], ["e", "\u00cc", "\u0123"]
    ids = Tokenizer.byte_level(composed + apart, [], pre).encode("e\u0301")
    assert ids[:2] == ([0, 1] if composes else [2, 3])


@pytest.mark.parametrize(
    ("pre", "keeps"), [("glm4", True), ("tekken", True), ("dbrx", False), ("gpt-4o", False)]
)
def test_a_piece_that_is_a_token_is_kept_where_the_family_does(pre, keeps):
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    assert Tokenizer.byte_level(tokens, ["b c"], pre).encode("abc") == ([5] if keeps else [0, 4])


def by_score(text, tokens, scores, types, prefix):
    """Merge the neighbours whose token has the highest score, the first of equals, until none have one."""
    ids = {token: i for i, token in enumerate(tokens)}
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    text = (SPACE if prefix and text else "") + text.replace(" ", SPACE)
    symbols = list(text)
    while True:
        pairs = [(a + b, i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in normal]
        if not pairs:
            break
        merged, i = min(pairs, key=lambda pair: (-scores[ids[pair[0]]], pair[1]))
        symbols[i : i + 2] = [merged]
    result = []
    for symbol in symbols:
        if symbol in normal:
            result.append(ids[symbol])
        else:
            result += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return result


def vocabulary(rng):
    """Return tokens, scores and types: bytes, letters, and longer tokens made of two others."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, SPECIAL, SPECIAL] + [BYTE] * 256
    normal = [*"abcde", SPACE, "\u00e9"]
    while len(normal) < 80:
        longer = "".join(rng.choice(normal, 2))
        if longer not in normal and len(longer) < 9:
            normal.append(longer)
    scores = [0.0] * len(tokens) + [-float(i) for i in rng.permutation(len(normal))]
    return [*tokens, *normal], scores, types + [NORMAL] * len(normal)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_merged_by_score(seed, prefix):
    rng = np.random.default_rng(seed)
    tokens, scores, types = vocabulary(rng)
    backend = score_encoder(tokens, scores, types, add_space_prefix=prefix)
    tokenizer = Tokenizer(backend)
    for _ in range(200):
        text = "".join(rng.choice([*"abcde  \u00e9", "\u65e5", "\n"], rng.integers(0, 30)))
        ids = tokenizer.encode(text, add_special=False)
        assert ids == by_score(text, tokens, scores, types, prefix)
        assert tokenizer.decode(ids) == text


def test_a_token_of_spaces_is_recognized_as_it_stands():
    tokens = ["<unk>", "a", SPACE, SPACE * 3, f"{SPACE}a"]
    types = [UNKNOWN, NORMAL, NORMAL, USER_DEFINED, NORMAL]
    backend = score_encoder(tokens, [0.0] * 5, types, add_space_prefix=False)
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("   a a") == [3, 1, 4]
    assert tokenizer.decode([3, 1, 4]) == "   a a"


def test_without_bytes_the_unknown_token_stands_for_the_rest():
    backend = score_encoder(["<unk>", "a"], [0.0, 0.0], [UNKNOWN, NORMAL], add_space_prefix=False)
    assert Tokenizer(backend).encode("a\u65e5\u672ca") == [1, 0, 1]


@pytest.mark.parametrize(
    ("tokens", "types", "message"),
    [
        (["a", "a"], [NORMAL, NORMAL], "the token 'a' twice"),
        (["a", "b"], [NORMAL, 7], "unknown type 7"),
        (["a", "<0x00>"], [NORMAL, BYTE], "tokens for 1 of 256 bytes"),
        (["a", "b"], [NORMAL, BYTE], "tokens for 0 of 256 bytes"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(tokens, types, message):
    with pytest.raises(ValueError, match=message):
        score_encoder(tokens, [0.0, 0.0], types, add_space_prefix=True)


def metadata(**changes):
    values = {
        "ggml.model": "llama",
        "ggml.tokens": ["<unk>", "<s>", "</s>", "a", SPACE, f"{SPACE}a", "<|user|>", "<|end|>", "[PAD8]"],
        "ggml.scores": np.array([0, 0, 0, -3, -2, -1, -1000, -1000, -10000], np.float32),
        "ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 3, 3, 5], np.int32),
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {f"tokenizer.{name}": value for name, value in values.items() if value is not None}


def test_a_text_begins_with_a_token_and_a_space():
    tokenizer = read_tokenizer(metadata())
    assert tokenizer.encode("a a") == [1, 5, 5]
    assert tokenizer.encode("a a", add_special=False) == [5, 5]
    assert tokenizer.decode([1, 5, 5]) == "a a"
    assert tokenizer.vocab_size == 9


def test_text_behind_a_special_token_begins_with_a_space_too():
    assert read_tokenizer(metadata()).encode("a<|user|>a") == [1, 5, 6, 5]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"ggml__add_bos_token": False}, [5, 5]),
        ({"ggml__add_space_prefix": False}, [1, 3, 5]),
        ({"ggml__bos_token_id": None}, [1, 5, 5]),
        ({"ggml__bos_token_id": 6}, [6, 5, 5]),
        ({"ggml__pre": "default"}, [1, 5, 5]),
    ],
)
def test_the_metadata_say_how_a_text_begins(changes, ids):
    assert read_tokenizer(metadata(**changes)).encode("a a") == ids


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, (2, 7)),
        ({"ggml__eot_token_id": 6}, (2, 6)),
        ({"ggml__eos_token_id": None}, (7,)),
        ({"ggml__eos_token_id": 7}, (7,)),
        ({"ggml__token_type": np.array([2, 3, 3, 1, 1, 1, 3, 1, 5], np.int32)}, (2,)),
    ],
)
def test_what_ends_a_turn_is_known_by_its_text(changes, ids):
    assert read_tokenizer(metadata(**changes)).eos_ids == ids


def test_an_id_that_stands_for_no_token_gives_no_text_and_is_not_recognized():
    tokenizer = read_tokenizer(metadata())
    assert tokenizer.decode([5, 8, 5]) == "a a"
    byte_level = Tokenizer.byte_level(["a", "[PAD1]", "[PAD1]"], [], "gpt-2", unused_ids=[1, 2])
    assert byte_level.vocab_size == 3
    assert byte_level.encode("[PAD1]a") == [0]
    assert byte_level.decode([0, 1, 2, 0]) == "aa"


def test_phi_3_leaves_out_white_space_behind_its_special_tokens():
    phi3 = read_tokenizer(metadata() | {"general.architecture": "phi3"})
    assert phi3.encode("<|user|> \n a<s> a") == [1, 6, 5, 1, 4, 5]
    llama = read_tokenizer(metadata() | {"general.architecture": "llama"})
    assert llama.encode("<|user|> a") == [1, 6, 4, 5]


def test_a_file_without_a_vocabulary_has_no_tokenizer():
    assert read_tokenizer({"tokenizer.ggml.model": "none"}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__scores": None}, "lack tokenizer.ggml.scores"),
        ({"ggml__scores": np.zeros(8, np.float32)}, "9 tokens and 8 scores"),
        ({"ggml__pre": "chatglm-spm"}, "pre-tokenizer 'chatglm-spm' isn't implemented"),
        ({"ggml__remove_extra_whitespaces": True}, "remove_extra_whitespaces isn't implemented"),
        ({"ggml__add_eos_token": True}, "add_eos_token isn't implemented"),
        ({"ggml__bos_token_id": 9}, "must be in 0..8"),
        ({"ggml__eos_token_id": 9}, "must be in 0..8"),
        ({"ggml__add_space_prefix": 1}, "add_space_prefix has the wrong type"),
    ],
)
def test_metadata_that_ask_for_something_else_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_tokenizer(metadata(**changes))
