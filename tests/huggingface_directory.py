"""Small Hugging Face directories, written for tests, and what their architecture says they hold."""

import json
import sys
from types import SimpleNamespace

import numpy as np
from safetensors.numpy import save_file

import pytensor_rope.checkpoints.huggingface as huggingface
from pytensor_rope.checkpoints.base import Weight
from pytensor_rope.config import DecoderConfig

VOCAB, HIDDEN, INNER = 12, 8, 6
CONFIG = {"model_type": "llama", "eos_token_id": 7}
ROWS = {"layers.0.query": np.array([3, 1, 2]), "layers.0.key": np.array([0, 4, 5])}
ARCHITECTURES = "pytensor_rope.checkpoints.huggingface.architectures"


def architecture(duplicates=()):
    """Return what a small model with a fused projection must hold."""

    def weights():
        yield Weight(name="embedding", source="embed", shape=(VOCAB, HIDDEN))
        yield Weight(name="layers.0.up", source="up", shape=(INNER, HIDDEN), transpose=True)
        for name, rows in ROWS.items():
            yield Weight(name=name, source="fused", shape=(INNER, HIDDEN), transpose=True, rows=rows)
            yield Weight(name=f"{name}_bias", source="fused_bias", shape=(INNER,), rows=rows)
        yield Weight(name="final_norm", source="norm", shape=(HIDDEN,))

    config = DecoderConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        n_layer=1,
        n_head=2,
        n_kv_head=2,
        head_dim=4,
        context_length=32,
    )
    return SimpleNamespace(
        config=config,
        weights=weights,
        surplus=lambda name: name.endswith("inv_freq"),
        duplicates=dict(duplicates),
    )


def describe_small(monkeypatch):
    """Have every configuration describe the small model; its ``architecture`` may be changed."""
    fake = SimpleNamespace(describe=lambda config: fake.architecture, architecture=architecture())
    monkeypatch.setitem(sys.modules, ARCHITECTURES, fake)
    monkeypatch.setattr(huggingface, "architectures", fake, raising=False)
    return fake


def tensors(dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = {
        "embed": (VOCAB, HIDDEN),
        "up": (INNER, HIDDEN),
        "fused": (INNER, HIDDEN),
        "fused_bias": (INNER,),
        "norm": (HIDDEN,),
    }
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def write(folder, arrays=(), **files):
    """Write a small directory; tensors that are None are left out."""
    folder.mkdir(exist_ok=True)
    arrays = {name: array for name, array in (tensors() | dict(arrays)).items() if array is not None}
    save_file(arrays, folder / "model.safetensors")
    write_files(folder, **{"config": CONFIG} | files)
    return folder


def write_files(folder, **files):
    for name, value in files.items():
        (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))


def safetensors(entries, data=b""):
    """Return a safetensors file of a header as it is given."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


def tokenizer_json(**changes):
    """Return a byte-level tokenizer of ten tokens, the last two special."""
    tokens = ["a", "b", "ab", "Ġ", "Ã", "©", "c", "d"]
    added = [
        {"id": i, "content": content, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, content in ((8, "<s>"), (9, "</s>"))
    ]
    before_words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {token: i for i, token in enumerate(tokens)}
    return {
        "version": "1.0",
        "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": before_words,
        "post_processor": None,
        "decoder": before_words,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    } | changes


def template(*pieces):
    return {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}}
            if piece == "$A"
            else {"SpecialToken": {"id": piece, "type_id": 0}}
            for piece in pieces
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]} for token, i in (("<s>", 8), ("</s>", 9))
        },
    }
