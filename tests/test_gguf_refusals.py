"""GGUF files that ask for something else than their architecture has, or lack what it needs."""

import numpy as np
import pytest
from gguf_models import MADE, file_of, load

from pytensor_rope.checkpoints import CheckpointError

REFUSED = {
    "attention.scale": 0.5,
    "attention.clamp_kqv": 8.0,
    "attention.causal": False,
    "attention.value_length": 40,
    "attention.value_length_swa": 40,
    "attention.head_count": [4, 4],
    "embedding_scale": 2.0,
    "residual_scale": 2.0,
    "logit_scale": -2.0,
    "attn_logit_softcapping": -5.0,
    "final_logit_softcapping": -5.0,
    "expert_count": 8,
    "nextn_predict_layers": 1,
    "rope.scaling.type": "su",
    "rope.dimension_sections": [1, 1, 1, 0],
    "rope.dimension_count_swa": 2,
    "something_new": 1,
}
READ_BY_GRANITE = ("attention.scale", "embedding_scale", "residual_scale")
NAMES = [*MADE, "granite"]


@pytest.mark.parametrize("key", REFUSED)
@pytest.mark.parametrize("name", NAMES)
def test_keys_that_ask_for_something_else_are_refused(tmp_path, name, key):
    if name == "granite" and key in READ_BY_GRANITE:
        pytest.skip("granite has it")
    named = key.removeprefix("attention.").removeprefix("rope.")
    with pytest.raises(CheckpointError, match=f"{named}|_softcap must be positive"):
        load(tmp_path / "odd.gguf", *file_of(name), **{key: REFUSED[key]})


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("granite", {"logit_scale": 0.0}, "logit_scale is 0.0"),
        ("granite", {"residual_scale": -1.0}, "residual_scale must be"),
        ("granite", {"rope.scaling.finetuned": 1}, "finetuned is 1: True or False"),
        ("granite", {"attention.sliding_window": 8}, "sliding_window is 8"),
        ("llama_biased", {"attention.sliding_window": 8}, "sliding_window is 8"),
        ("llama_biased", {"rope.freq_base_swa": 500.0}, "freq_base_swa is 500.0"),
        ("olmo3", {"rope.freq_base_swa": 500.0}, "freq_base_swa is 500.0"),
        ("olmo3", {"attention.sliding_window_pattern": [True]}, "1 flags for 4 layers"),
        ("olmo3", {"attention.sliding_window_pattern": [1, 2, 3, 4]}, "sliding_window_pattern is an array"),
        ("olmo3", {"attention.sliding_window_pattern": "all"}, "sliding_window_pattern is 'all'"),
        ("gemma2", {"attention.sliding_window": 0}, "sliding_window is 0"),
        ("cohere2", {"logit_scale": 0.0}, "logit_scale is 0.0"),
        ("cohere2", {"rope.freq_base_swa": 500.0}, "freq_base_swa is 500.0"),
        ("cohere2", {"block_count": 4_000_000_000}, "block_count is 4000000000"),
        ("smollm3_five_layers", {"block_count": 4_000_000_000}, "block_count is 4000000000"),
        ("glm", {"feed_forward_length": 1 << 31}, "ffn_up.weight has shape"),
        ("glm", {"rope.dimension_sections": [2, 1, 1, 0]}, "dimension_sections isn't"),
        ("phi3_longrope", {"feed_forward_length": 1 << 31}, "ffn_up.weight has shape"),
        ("phi3_longrope", {"attention.head_count_kv": 4}, "attn_qkv.weight has shape"),
        ("phi3_longrope", {"attention.key_length": 1 << 31}, "attn_qkv.weight has shape"),
        ("phi3_longrope", {"rope.dimension_count": 8}, "factor"),
        ("phi3_longrope", {"rope.dimension_count": 32}, "rotary_dim|factor"),
        ("gpt_neox_sequential", {"use_parallel_residual": 1}, "use_parallel_residual is 1"),
        ("gpt_neox_sequential", {"attention.layer_norm_epsilon": 0.0}, "epsilon must be"),
        ("gpt_neox_sequential", {"attention.layer_norm_rms_epsilon": 1e-5}, "layer_norm_rms_epsilon"),
        ("gemma", {"attention.sliding_window": 8}, "sliding_window is 8"),
        ("gemma", {"attention.layer_norm_epsilon": 1e-5}, "layer_norm_epsilon"),
    ],
)
def test_wrong_values_are_refused(tmp_path, name, metadata, message):
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "odd.gguf", *file_of(name), **metadata)


@pytest.mark.parametrize("name", NAMES)
def test_what_an_architecture_needs_is_missed(tmp_path, name):
    architecture, metadata, arrays = file_of(name)
    optional = {"rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "vocab_size"}
    optional |= {"attention.key_length", "attention.value_length", "attention.head_count_kv"}
    optional |= {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor"}
    optional |= {"rope.scaling.original_context_length", "attention.sliding_window_pattern"}
    optional |= {"attention.scale", "embedding_scale", "residual_scale"}
    if name != "cohere2":
        optional |= {"attention.sliding_window"}
    if architecture == "command-r":
        optional |= {"logit_scale"}
    if architecture == "gemma2":
        optional |= {"attn_logit_softcapping", "final_logit_softcapping"}
    for key in metadata:
        if key.removeprefix(f"{architecture}.") in optional:
            continue
        rest = {other: value for other, value in metadata.items() if other != key}
        with pytest.raises(CheckpointError, match=f"lacks {key}"):
            load(tmp_path / "less.gguf", architecture, rest, arrays)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_missing_transposed_or_renamed_are_refused(tmp_path, name):
    architecture, metadata, arrays = file_of(name)
    path = tmp_path / "odd.gguf"
    for tensor, array in arrays.items():
        if not tensor.startswith(("blk.1.", "output", "token_embd")):
            continue
        others = {other: value for other, value in arrays.items() if other != tensor}
        odd = {
            "renamed": others | {f"{tensor}s": array},
            "longer": others | {tensor: np.append(array, array, 0)},
        }
        # A file may be tied, and Qwen's head may do without a bias.
        if tensor != "output.weight" and (architecture, tensor) != ("qwen2", "output.bias"):
            odd["missing"] = others
        if array.ndim == 2 and array.shape[0] != array.shape[1]:
            odd["transposed"] = others | {tensor: array.T}
        # The embedding says how many tokens there are: with another, others don't fit.
        others_too = "|tokenizer has|output.weight" if tensor == "token_embd.weight" else ""
        for changed in odd.values():
            with pytest.raises(CheckpointError, match=tensor.replace(".", r"\.") + others_too):
                load(path, architecture, metadata, changed)


def test_a_phi_2_is_never_tied(tmp_path):
    architecture, metadata, arrays = file_of("phi")
    del arrays["output.weight"]
    with pytest.raises(CheckpointError, match=r"output\.weight is missing"):
        load(tmp_path / "odd.gguf", architecture, metadata, arrays)


@pytest.mark.parametrize("name", ["cohere2", "cohere_qk_norm", "gemma", "gemma2"])
def test_models_that_are_always_tied_have_no_head(tmp_path, name):
    architecture, metadata, arrays = file_of(name)
    arrays["output.weight"] = arrays["token_embd.weight"]
    with pytest.raises(CheckpointError, match=r"output\.weight aren't implemented"):
        load(tmp_path / "odd.gguf", architecture, metadata, arrays)
