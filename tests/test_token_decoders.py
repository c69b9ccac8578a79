"""Streaming decoders against those of Hugging Face's tokenizers."""

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, decoders, models

from pytensor_rope.tokenizer import Tokenizer

SENTENCEPIECE = ["<unk>", "</s>", "▁", "▁a", "b", "a▁b", "▁▁", "\ufffd", " c"] + [
    f"<0x{byte:02X}>" for byte in "▁é🎉A".encode()
]
WORD_PIECE = [
    "[UNK]",
    "[SEP]",
    "a",
    "##b",
    "##c",
    ".",
    " ?",
    "!",
    "'",
    "n't",
    "'s",
    "do",
    "##",
    " not",
    "##'",
]
BYTES = ["<unk>", "</s>", "🎉", "\ufffd", "Ġa", "ðŁ", *map(chr, range(0xE0, 0x130))]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "byte-level": (BYTES, decoders.ByteLevel()),
    "llama": (SENTENCEPIECE, decoders.Sequence([*LLAMA, decoders.Strip(" ", 1, 0)])),
    "gemma": (SENTENCEPIECE, decoders.Sequence(LLAMA)),
    "metaspace": (SENTENCEPIECE, decoders.Metaspace()),
    "metaspace behind bytes": (
        SENTENCEPIECE,
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ),
    "replacing late": (SENTENCEPIECE, decoders.Sequence([decoders.Fuse(), decoders.Replace("a▁b", "▁")])),
    "regular expression": (SENTENCEPIECE, decoders.Replace(Regex("▁+"), "-")),
    "word pieces": (WORD_PIECE, decoders.WordPiece()),
    "word pieces as they are": (WORD_PIECE, decoders.WordPiece(cleanup=False)),
    "word ends": (["<unk>", "</s>", "a</w>", "b", "c</w>d", "</w>"], decoders.BPEDecoder()),
    "none": (WORD_PIECE, None),
}  # fmt: skip


def backend_of(tokens, decoder):
    backend = tokenizers.Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, tokens[0]))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens([tokenizers.AddedToken(tokens[1], special=True, normalized=False)])
    return backend


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_gives_what_hugging_face_gives(name):
    tokens, decoder = DECODERS[name]
    backend = backend_of(tokens, decoder)
    tokenizer = Tokenizer(backend)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        ids = rng.integers(len(tokens), size=rng.integers(10)).tolist()
        for skip in (True, False):
            expected = backend.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip) == expected, [tokens[i] for i in ids]
            stream = tokenizer.stream_decoder(skip)
            for _ in range(2):
                assert "".join([*map(stream.push, ids), stream.flush()]) == expected


@pytest.mark.parametrize(
    ("name", "tokens", "pieces"),
    [
        ("byte-level", ["ð", "Ł", "İ", "ī", "Ġa"], ["", "", "", "🎉", " a", ""]),
        ("llama", ["▁a", "▁a", "<0xC3>", "<0xA9>", "b"], ["a", " a", "", "", "éb", ""]),
        ("llama", ["▁", "▁", "<0xC3>", "b", "<0xC3>"], ["", " ", "", "\ufffdb", "", "\ufffd"]),
        ("metaspace", ["▁a", "▁a", "b"], ["a", " a", "b", ""]),
        ("word pieces", ["a", "##b", "do", "n't", "."], ["a", "b", " do", "n't", ".", ""]),
        ("word ends", ["b", "a</w>", "a</w>"], ["", "b", "a ", "a"]),
    ],
)
def test_a_stream_gives_text_as_soon_as_it_is_certain(name, tokens, pieces):
    all_tokens, decoder = DECODERS[name]
    ids = {token: i for i, token in enumerate([*all_tokens, *(t for t in tokens if t not in all_tokens)])}
    stream = Tokenizer(backend_of(list(ids), decoder)).stream_decoder()
    assert [*(stream.push(ids[token]) for token in tokens), stream.flush()] == pieces


@pytest.mark.parametrize("name", ["byte-level", "llama", "metaspace", "word pieces"])
def test_a_stream_holds_back_little_whatever_comes(name):
    tokens, decoder = DECODERS[name]
    stream = Tokenizer(backend_of(tokens, decoder)).stream_decoder()
    # Bytes that never make a character, and what looks like one that stays incomplete.
    for _ in range(300):
        for i in range(len(tokens)):
            stream.push(i)
    assert len(stream.flush()) < 20


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (decoders.CTC(), "decoder 'CTC' isn't implemented"),
        (decoders.Sequence([decoders.Fuse(), decoders.WordPiece()]), "'WordPiece' behind a step that joins"),
        (
            decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("a"), "b")]),
            "regular expression behind",
        ),
    ],
)
def test_decoders_that_are_not_implemented_are_refused(decoder, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer(backend_of(["a", "b"], decoder))
