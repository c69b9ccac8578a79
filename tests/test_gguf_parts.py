"""GGUF models split over several files, and parts that don't belong together."""

import re

import numpy as np
import pytest
from gguf_writer import write_gguf

from pytensor_rope.checkpoints import CheckpointError, load_checkpoint

METADATA = {
    "qwen3.block_count": 1,
    "qwen3.context_length": 32,
    "qwen3.embedding_length": 8,
    "qwen3.feed_forward_length": 16,
    "qwen3.attention.head_count": 2,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "none",
}
SHAPES = {
    "token_embd": (6, 8),
    "output_norm": (8,),
    "blk.0.attn_norm": (8,),
    "blk.0.attn_q": (8, 8),
    "blk.0.attn_k": (8, 8),
    "blk.0.attn_v": (8, 8),
    "blk.0.attn_q_norm": (4,),
    "blk.0.attn_k_norm": (4,),
    "blk.0.attn_output": (8, 8),
    "blk.0.ffn_norm": (8,),
    "blk.0.ffn_gate": (16, 8),
    "blk.0.ffn_up": (16, 8),
    "blk.0.ffn_down": (8, 16),
}


def tensors():
    rng = np.random.default_rng(0)
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def name_of(number):
    return f"model-{number + 1:05}-of-00003.gguf"


def write_parts(folder, changes=None):
    """Write a model in three parts; ``changes`` are the metadata and arrays of some that differ."""
    names = list(tensors())
    for number, own in enumerate((names[:5], names[5:6], names[6:])):
        metadata = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        arrays = {name: tensors()[name] for name in own}
        more_metadata, more_arrays = (changes or {}).get(number, ({}, {}))
        every = metadata | (METADATA if number == 0 else {}) | more_metadata
        write_gguf(folder / name_of(number), "qwen3", every, arrays | more_arrays)
    return folder / name_of(0)


def test_a_model_in_parts_is_the_model_in_one_file(tmp_path):
    whole = load_checkpoint(write_gguf(tmp_path / "whole.gguf", "qwen3", METADATA, tensors()))
    parts = load_checkpoint(write_parts(tmp_path))
    assert parts.config == whole.config
    assert parts.weights.keys() == whole.weights.keys()
    for name, weight in whole.weights.items():
        np.testing.assert_array_equal(parts.weights[name], weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({1: ({"split.no": 2}, {})}, "00002-of-00003.gguf isn't part 2 of 3"),
        ({2: ({"split.count": 4}, {})}, "00003-of-00003.gguf isn't part 3 of 3"),
        ({2: ({"split.no": "2"}, {})}, "split.no is '2'"),
        ({0: ({"split.count": 2}, {})}, "must end with -00001-of-00002.gguf"),
        ({0: ({"split.count": "3"}, {})}, "split.count is '3'"),
        ({0: ({"split.tensors.count": 14}, {})}, "13 tensors, and split.tensors.count is 14"),
        (
            {2: ({}, {"token_embd.weight": np.zeros((6, 8), np.float32)})},
            "token_embd.weight is in model-00001",
        ),
        ({2: ({}, {"blk.0.ffn_down.weight": np.zeros((4, 4), np.float32)})}, "ffn_down.weight has shape"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path, changes, message):
    path = write_parts(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def test_a_part_that_is_missing_or_empty_is_named(tmp_path):
    path = write_parts(tmp_path)
    (tmp_path / name_of(2)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.gguf: the file is empty"):
        load_checkpoint(path)
    (tmp_path / name_of(2)).unlink()
    with pytest.raises(CheckpointError, match=f"{re.escape(str(tmp_path / name_of(2)))} is missing"):
        load_checkpoint(path)


def test_another_part_than_the_first_names_the_first(tmp_path):
    write_parts(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"part 2 of a model.* give the first, model-00001-of-00003\.gguf"
    ):
        load_checkpoint(tmp_path / name_of(1))
