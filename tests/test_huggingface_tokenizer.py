"""The tokenizers of Hugging Face directories: small ones written here, and everything to be refused."""

import sys

import pytest
from huggingface_directory import CONFIG, VOCAB, describe_small, template, tokenizer_json, write

from pytensor_rope.checkpoints import CheckpointError, load_checkpoint


@pytest.fixture(autouse=True)
def described(monkeypatch):
    return describe_small(monkeypatch)


def load_tokenizer(folder, config=None, tokenizer=None, **files):
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    settings = names | (config or {})
    write(folder, tokenizer=tokenizer or tokenizer_json(), tokenizer_config=settings, **files)
    return load_checkpoint(folder).tokenizer


def test_a_tokenizer_is_read(tmp_path):
    tokenizer = load_tokenizer(tmp_path / "small")
    assert tokenizer.encode("abab</s>cé") == [2, 2, 9, 6, 4, 5]
    assert tokenizer.decode([8, 2, 4, 5, 9]) == "abé"
    assert tokenizer.decode([8, 2, 9], skip_special=False) == "<s>ab</s>"
    assert tokenizer.vocab_size == VOCAB
    assert tokenizer.bos_id == 8


def test_ids_of_a_padded_vocabulary_give_no_text(tmp_path):
    tokenizer = load_tokenizer(tmp_path / "small")
    assert tokenizer.decode([0, 10, 11, 1]) == "ab"
    with pytest.raises(ValueError, match=r"token ids must be in 0\.\.11"):
        tokenizer.decode([12])


@pytest.mark.parametrize(
    ("pieces", "settings", "expected"),
    [
        (None, {}, [2]),
        (("<s>", "$A"), {}, [8, 2]),
        (("<s>", "$A"), {"add_bos_token": True}, [8, 2]),
        (("<s>", "$A"), {"add_bos_token": False}, [2]),
        (("<s>", "$A"), {"add_eos_token": True}, [8, 2, 9]),
        (("<s>", "$A"), {"add_bos_token": None, "add_eos_token": False}, [8, 2]),
        (("<s>", "$A", "</s>"), {"add_eos_token": False}, [8, 2]),
        (("<s>", "$A", "</s>"), {"add_bos_token": False, "add_eos_token": False}, [2]),
        (None, {"add_bos_token": True}, [8, 2]),
        (None, {"add_bos_token": True, "add_eos_token": True}, [8, 2, 9]),
    ],
)
def test_texts_begin_and_end_as_the_settings_say(tmp_path, pieces, settings, expected):
    tokenizer = tokenizer_json(post_processor=pieces and template(*pieces))
    read = load_tokenizer(tmp_path / "small", settings, tokenizer)
    assert read.encode("ab") == expected
    assert read.encode("ab", add_special=False) == [2]
    assert read.encode("") == [i for i in expected if i != 2]


@pytest.mark.parametrize(
    ("generation", "config", "settings", "expected"),
    [
        ({"eos_token_id": [1, 2]}, CONFIG, {}, (1, 2)),
        ({}, CONFIG, {}, (7,)),
        ({}, {"eos_token_id": [5, 6]}, {}, (5, 6)),
        ({}, {}, {}, (9,)),
        ({}, {}, {"eos_token": None}, ()),
    ],
)
def test_what_ends_a_text_is_read_in_order(tmp_path, generation, config, settings, expected):
    folder = write(
        tmp_path / "small",
        config=config,
        generation_config=generation,
        tokenizer=tokenizer_json(),
        tokenizer_config={"eos_token": "</s>"} | settings,
    )
    assert load_checkpoint(folder).tokenizer.eos_ids == expected


def test_named_tokens_are_special_even_if_tokenizer_json_does_not_say_so(tmp_path):
    tokenizer = load_tokenizer(tmp_path / "small", tokenizer=tokenizer_json(added_tokens=[]))
    assert tokenizer.bos_id is None
    settings = {"pad_token": "d", "bos_token": "ab", "additional_special_tokens": ["c"]}
    tokenizer = load_tokenizer(tmp_path / "small", settings)
    assert tokenizer.bos_id == 2
    assert tokenizer.decode([0, 7, 6, 2, 1]) == "ab"


MESSAGES = [{"role": "user", "content": "hi"}]
WRITTEN = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ boi }}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"chat_template": WRITTEN}, "<s>hi</s>"),
        ({"chat_template": WRITTEN, "pad_token": "<p>"}, "<s>hi</s><p>"),
        ({"chat_template": WRITTEN, "extra_special_tokens": {"boi": "<i>"}}, "<s>hi</s><i>"),
        ({"chat_template": WRITTEN, "bos_token": None}, "hi</s>"),
        (
            {"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": WRITTEN}]},
            "<s>hi</s>",
        ),
        ({"chat_template": "{% generation %}{{ bos_token }}{% endgeneration %}!"}, "<s>!"),
    ],
)
def test_the_chat_template_is_read_with_the_names_it_asks_for(tmp_path, settings, expected):
    assert load_tokenizer(tmp_path / "small", settings).apply_chat_template(MESSAGES) == expected


def test_a_template_in_a_file_of_its_own_wins(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("é{{ bos_token }}", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path, {"chat_template": WRITTEN})
    assert tokenizer.chat_template == "é{{ bos_token }}"
    assert tokenizer.apply_chat_template(MESSAGES) == "é<s>"


def test_no_default_template_is_none(tmp_path):
    settings = {"chat_template": [{"name": "rag", "template": "x"}]}
    assert load_tokenizer(tmp_path / "small", settings).chat_template is None


def test_older_checkpoints_name_their_tokens_in_another_file(tmp_path):
    folder = write(tmp_path / "small", tokenizer=tokenizer_json(), special_tokens_map={"bos_token": "<s>"})
    assert load_checkpoint(folder).tokenizer.bos_id == 8


def test_config_json_may_say_which_token_begins_a_text(tmp_path):
    folder = write(tmp_path / "small", tokenizer=tokenizer_json(), config={"bos_token_id": 8})
    assert load_checkpoint(folder).tokenizer.bos_id == 8


def many_tokens(n_model, n_added):
    vocab = {chr(0x100 + i): i for i in range(n_model)}
    added = [
        {"id": n_model + i, "content": f"<{i}>", "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i in range(n_added)
    ]
    return tokenizer_json(added_tokens=added, model={"type": "BPE", "vocab": vocab, "merges": []})


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    folder = write(tmp_path / "small", tokenizer=many_tokens(VOCAB + 1, 0))
    with pytest.raises(
        CheckpointError, match=r"of id 12 and the model only ids 0\.\.11.*don't belong together"
    ):
        load_checkpoint(folder)


def test_an_added_token_beyond_the_vocabulary_is_refused_in_text_alone(tmp_path):
    tokenizer = load_checkpoint(write(tmp_path / "small", tokenizer=many_tokens(VOCAB, 1))).tokenizer
    assert tokenizer.encode("\0") == [0]
    with pytest.raises(ValueError, match="token '<0>', whose id 12 the model doesn't have"):
        tokenizer.encode("\0<0>")


CTC = {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": True}
# The package panics, which is no Exception.
BROKEN = template("<s>", "$A") | {"special_tokens": {}}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": "{}"}, "tokenizer.json can't be read"),
        ({"tokenizer": "[" * 100_000}, "tokenizer.json can't be read"),
        ({"tokenizer": tokenizer_json(model={"type": "Odd"})}, "tokenizer.json can't be read"),
        ({"tokenizer": tokenizer_json(post_processor=BROKEN)}, "has a post_processor that fails"),
        (
            {"tokenizer": tokenizer_json(decoder=CTC)},
            "decoder 'CTC' isn't implemented.* Without this file the model loads",
        ),
        ({"tokenizer_config": "[]"}, "tokenizer_config.json must hold a JSON object"),
        ({"tokenizer_config": {"bos_token": 3}}, "bos_token must be a token; got 3"),
        ({"tokenizer_config": {"eos_token": {"text": "a"}}}, "eos_token must be a token"),
        ({"tokenizer_config": {"additional_special_tokens": "a"}}, "additional_special_tokens must be "),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "add_bos_token must be true or false; got 'yes'"),
        ({"tokenizer_config": {"add_bos_token": True}}, "add_bos_token is true, and no bos_token"),
        ({"tokenizer_config": {"chat_template": 3}}, "chat_template must be a string"),
        ({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "chat_template must be a string"),
        ({"config": {"eos_token_id": VOCAB}}, r"token ids must be in 0\.\.11, the vocabulary; got 12"),
        ({"config": {"bos_token_id": 1.5}}, "config.json: bos_token_id must be an integer"),
    ],
)  # fmt: skip
def test_damaged_tokenizer_files_are_refused(tmp_path, files, message):
    folder = write(tmp_path / "small", **{"tokenizer": tokenizer_json()} | files)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_template_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja isn't UTF-8"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no tokenizer.json"),
        ({"tokenizer.model": b"x"}, "holds tokenizer.model and no tokenizer.json.*save_pretrained"),
    ],
)
def test_a_model_without_a_tokenizer_says_what_is_missing(tmp_path, files, message):
    from pytensor_rope.model import Model

    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    checkpoint = load_checkpoint(write(tmp_path))
    assert checkpoint.tokenizer is None
    model = Model(checkpoint)
    with pytest.raises(
        CheckpointError, match=f"has no tokenizer: {tmp_path} .*{message}.*Token ids can be used"
    ):
        model.tokenizer  # noqa: B018


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "small", tokenizer=tokenizer_json())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pytensor-rope\[checkpoints\]"):
        load_checkpoint(folder)


def test_a_model_that_begins_with_no_token_has_none(tmp_path):
    files = {"config": {"bos_token_id": 8}, "tokenizer_config": {"bos_token": None}}
    assert (
        load_checkpoint(write(tmp_path / "small", tokenizer=tokenizer_json(), **files)).tokenizer.bos_id
        is None
    )
