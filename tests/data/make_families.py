"""
Make ``families.json``: small models of many families, and what transformers gives for them.

It needs transformers 5.24.0 and torch 2.13.0, which the tests don't. Each model is loaded from the directory
that the tests write too. Nothing is stored unless each option listed with the model matters: with the option
changed and the weights kept, the last logits move by more than 1e-3.

    python tests/data/make_families.py
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[1]))

from families import make_weights, write_checkpoint

N_TOKENS = 20
N_LOGITS = 5  # How many of the last positions have their logits stored.
MATTERS = 1e-3
MAX_NOISE = 2e-5

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
# GPT-NeoX has as many key/value heads as query heads, and ignores another number.
MULTI_HEAD = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
# Far more than what is usual, so that a model with the wrong epsilon gives other logits.
RMS = {"rms_norm_eps": 0.01}
LAYER_NORM = {"layer_norm_eps": 0.01}
SLIDING, FULL = "sliding_attention", "full_attention"


def rope(theta=500.0, **others):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | others}


# What every model of a family is asked about: fields to change, "/" before a key within a field.
THETA = {"rope_parameters/rope_theta": 400.0}
RMS_EPSILON = {"rms_norm_eps": 1e-5}
LAYER_NORM_EPSILON = {"layer_norm_eps": 1e-5}
WINDOW = {"sliding_window": 7}
PARTIAL = {"rope_parameters/partial_rotary_factor": 1.0}
UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [1.5, 2.5, 4.0, 6.0],
}

# Name: model type, fields, and the changes that must matter.
MODELS = {
    "llama_bias": (
        "llama",
        SIZES
        | RMS
        | rope()
        | {"head_dim": 16, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}
        | {"tie_word_embeddings": True},
        [THETA, RMS_EPSILON, UNTIED, {"attention_bias": False}, {"mlp_bias": False}],
    ),
    "llama_linear": (
        "llama",
        SIZES | RMS | rope(rope_type="linear", factor=4.0) | {"head_dim": 16},
        [THETA, RMS_EPSILON, TIED, {"rope_parameters/factor": 2.0}, {"rope_parameters/rope_type": "default"}],
    ),
    "llama_dynamic": (
        "llama",
        SIZES | RMS | rope(rope_type="dynamic", factor=4.0) | {"head_dim": 16},
        [THETA, {"rope_parameters/rope_type": "linear"}, {"max_position_embeddings": 12}],
    ),
    "llama_dynamic_long": (
        "llama",
        SIZES | RMS | rope(rope_type="dynamic", factor=4.0) | {"head_dim": 16, "max_position_embeddings": 12},
        [THETA, {"rope_parameters/factor": 2.0}, {"max_position_embeddings": 64}],
    ),
    "mistral_full": (
        "mistral",
        SIZES | RMS | rope() | {"head_dim": 16, "sliding_window": None},
        [THETA, RMS_EPSILON, {"sliding_window": 6}, {"sliding_window": N_TOKENS - 1}],
    ),
    "ministral": (
        "ministral",
        SIZES | RMS | rope() | {"head_dim": 16, "sliding_window": 6, "layer_types": [SLIDING, FULL]},
        [THETA, WINDOW, {"layer_types": [FULL, FULL]}, {"layer_types": [FULL, SLIDING]}],
    ),
    "qwen2_sliding": (
        "qwen2",
        SIZES
        | RMS
        | rope()
        | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        [
            *(THETA, RMS_EPSILON, WINDOW, {"use_sliding_window": False, "layer_types": None}),
            *({"max_window_layers": 2, "layer_types": None}, {"layer_types": [SLIDING] * 3}),
        ],
    ),
    "qwen2_tied": (
        "qwen2",
        SIZES | RMS | rope() | {"num_key_value_heads": 1, "tie_word_embeddings": True},
        [THETA, UNTIED],
    ),
    "qwen3_sliding_tied": (
        "qwen3",
        SIZES
        | RMS
        | rope()
        | {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        [
            *(THETA, RMS_EPSILON, WINDOW, UNTIED, {"attention_bias": False}),
            *({"layer_types": [FULL, FULL]}, {"layer_types": [SLIDING, SLIDING]}),
        ],
    ),
    "smollm3_sliding": (
        "smollm3",
        SIZES
        | RMS
        | rope()
        | {"num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
        | {"use_sliding_window": True, "sliding_window": 6, "no_rope_layers": [1, 0, 1]},
        [
            *(THETA, RMS_EPSILON, WINDOW, UNTIED, {"attention_bias": False}, {"mlp_bias": False}),
            *({"no_rope_layers": [1, 1, 1]}, {"layer_types": [FULL] * 3}, {"layer_types": [SLIDING] * 3}),
        ],
    ),
    "phi3_longrope_short": (
        "phi3",
        SIZES | RMS | rope(**LONGROPE) | {"sliding_window": 6, "original_max_position_embeddings": 32},
        [
            *(THETA, RMS_EPSILON, WINDOW, {"sliding_window": None}, {"original_max_position_embeddings": 12}),
            *({"max_position_embeddings": 32}, {"rope_parameters/short_factor": [1.0] * 4}),
        ],
    ),
    "phi3_longrope_long": (
        "phi3",
        SIZES | RMS | rope(**LONGROPE) | {"sliding_window": None, "original_max_position_embeddings": 12},
        [
            *(THETA, RMS_EPSILON, {"sliding_window": 6}, {"original_max_position_embeddings": 32}),
            *({"max_position_embeddings": 32}, {"rope_parameters/long_factor": [1.0] * 4}),
        ],
    ),
    "phi": (
        "phi",
        SIZES | LAYER_NORM | rope(partial_rotary_factor=0.5),
        [THETA, LAYER_NORM_EPSILON, PARTIAL, TIED, {"hidden_act": "gelu"}, {"qk_layernorm": True}],
    ),
    "phi_qk_layernorm": (
        "phi",
        SIZES | LAYER_NORM | rope(partial_rotary_factor=0.5) | {"qk_layernorm": True},
        [THETA, LAYER_NORM_EPSILON, PARTIAL, {"qk_layernorm": False}],
    ),
    "gemma": (
        "gemma",
        SIZES | RMS | rope() | {"head_dim": 16, "num_key_value_heads": 1},
        [THETA, RMS_EPSILON, UNTIED, {"hidden_act": "silu"}],
    ),
    "gemma2_alternating": (
        "gemma2",
        SIZES
        | RMS
        | rope()
        | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 6}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
        [
            *(THETA, RMS_EPSILON, WINDOW, UNTIED),
            *({"query_pre_attn_scalar": 16}, {"hidden_activation": "gelu"}),
            *({"attn_logit_softcapping": None}, {"final_logit_softcapping": None}),
            *({"layer_types": [FULL, FULL]}, {"layer_types": [FULL, SLIDING]}),
        ],
    ),
    "gemma3_linear": (
        "gemma3_text",
        SIZES
        | RMS
        | {"num_hidden_layers": 3, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 6}
        | {"layer_types": [SLIDING, SLIDING, FULL]}
        | {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            }
        },
        [
            *(RMS_EPSILON, WINDOW, UNTIED, {"query_pre_attn_scalar": 16}),
            {f"rope_parameters/{FULL}/rope_theta": 100.0},
            {f"rope_parameters/{SLIDING}/rope_theta": 1000.0},
            *({f"rope_parameters/{FULL}/factor": 2.0}, {"layer_types": [SLIDING, FULL, FULL]}),
        ],
    ),
    "gpt_neox_serial": (
        "gpt_neox",
        MULTI_HEAD | LAYER_NORM | rope(partial_rotary_factor=0.5) | {"use_parallel_residual": False},
        [
            *(THETA, LAYER_NORM_EPSILON, PARTIAL, {"use_parallel_residual": True}),
            *({"attention_bias": False}, {"hidden_act": "gelu_new"}),
        ],
    ),
    "gpt_neox_tied": (
        "gpt_neox",
        MULTI_HEAD
        | LAYER_NORM
        | rope(partial_rotary_factor=0.5)
        | {"attention_bias": False, "tie_word_embeddings": True, "hidden_act": "relu"},
        [
            *(THETA, LAYER_NORM_EPSILON, PARTIAL, UNTIED),
            *({"use_parallel_residual": False}, {"hidden_act": "gelu"}),
        ],
    ),
    "gptj_full": (
        "gptj",
        {"vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
        | {
            "rotary_dim": 8,
            "n_inner": None,
            "layer_norm_epsilon": 0.01,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        [{"rotary_dim": 4}, {"layer_norm_epsilon": 1e-5}, {"activation_function": "gelu"}],
    ),
    "cohere_qk_norm": (
        "cohere",
        SIZES | LAYER_NORM | rope() | {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.5},
        [
            *(THETA, LAYER_NORM_EPSILON, UNTIED, {"logit_scale": 0.25}),
            *({"use_qk_norm": False}, {"attention_bias": False}),
        ],
    ),
    "cohere2": (
        "cohere2",
        SIZES
        | LAYER_NORM
        | rope()
        | {"num_hidden_layers": 3, "logit_scale": 0.5, "sliding_window": 6}
        | {"layer_types": [SLIDING, FULL, SLIDING]},
        [
            *(THETA, LAYER_NORM_EPSILON, WINDOW, UNTIED, {"logit_scale": 0.25}),
            *({"layer_types": [SLIDING] * 3}, {"layer_types": [FULL] * 3}),
        ],
    ),
    "glm_bias": (
        "glm",
        SIZES | RMS | rope(partial_rotary_factor=0.5) | {"head_dim": 16, "attention_bias": True},
        [THETA, RMS_EPSILON, PARTIAL, TIED, {"attention_bias": False}],
    ),
    "glm4_no_bias": (
        "glm4",
        SIZES | RMS | rope(partial_rotary_factor=0.25) | {"head_dim": 16, "attention_bias": False},
        [THETA, RMS_EPSILON, PARTIAL, TIED, {"attention_bias": True}],
    ),
    "granite_bias": (
        "granite",
        SIZES
        | RMS
        | rope()
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7}
        | {"logits_scaling": 0.6},
        [
            *(THETA, RMS_EPSILON, UNTIED, {"attention_bias": False}, {"mlp_bias": False}),
            *({"embedding_multiplier": 1.0}, {"attention_multiplier": 8**-0.5}),
            *({"residual_multiplier": 1.0}, {"logits_scaling": 1.0}),
        ],
    ),
    "olmo2_tied": (
        "olmo2",
        SIZES | RMS | rope() | {"num_key_value_heads": 1, "tie_word_embeddings": True},
        [THETA, RMS_EPSILON, UNTIED],
    ),
    "olmo3": (
        "olmo3",
        SIZES
        | RMS
        | {"sliding_window": 6, "layer_types": [SLIDING, FULL]}
        | {
            "rope_parameters": {
                FULL: {
                    **{"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0},
                    **{"beta_fast": 1.0, "beta_slow": 0.1, "original_max_position_embeddings": 16},
                },
                SLIDING: {"rope_type": "default", "rope_theta": 500.0},
            }
        },
        [
            *(RMS_EPSILON, WINDOW, {"layer_types": [FULL, FULL]}, {"layer_types": [FULL, SLIDING]}),
            *(
                {f"rope_parameters/{FULL}/rope_theta": 100.0},
                {f"rope_parameters/{SLIDING}/rope_theta": 100.0},
            ),
            *({f"rope_parameters/{FULL}/factor": 2.0}, {f"rope_parameters/{FULL}/beta_fast": 0.4}),
            *({f"rope_parameters/{FULL}/beta_slow": 0.25}, {f"rope_parameters/{FULL}/attention_factor": 1.0}),
        ],
    ),
    "stablelm": (
        "stablelm",
        SIZES | LAYER_NORM | rope(partial_rotary_factor=0.5) | {"use_qkv_bias": True},
        [
            *(THETA, LAYER_NORM_EPSILON, PARTIAL, TIED),
            *({"use_qkv_bias": False}, {"use_parallel_residual": True}),
        ],
    ),
    "stablelm_parallel": (
        "stablelm",
        SIZES | LAYER_NORM | rope(partial_rotary_factor=0.5) | {"use_parallel_residual": True},
        [THETA, LAYER_NORM_EPSILON, PARTIAL, {"use_parallel_residual": False}],
    ),
    "starcoder2": (
        "starcoder2",
        SIZES | {"norm_epsilon": 0.01} | rope() | {"sliding_window": 6},
        [THETA, WINDOW, UNTIED, {"norm_epsilon": 1e-5}, {"use_bias": False}, {"hidden_act": "gelu"}],
    ),
}


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    families = {}
    for name, (model_type, fields, changes) in MODELS.items():
        config, tensors = saved(AutoConfig.for_model(model_type, **fields))
        ids = token_ids(name)
        logits, attention = run(name, config, tensors, ids)
        noise = np.abs(run(name, config, tensors, ids, torch.float64)[0] - logits).max()
        greatest = attention.max(-1)[..., 5:].mean()
        print(f"{name}: logits of {logits.std():.1f}, attention at most {greatest:.2f}, noise {noise:.0e}")
        assert 0.5 < logits.std() < 6, "logits of an unlikely size"
        assert greatest > 0.25, "attention is nearly uniform"
        assert noise < MAX_NOISE, "float64 gives other logits"
        for change in changes:
            moved = np.abs(run(name, *saved(changed(config, change)), ids)[0] - logits)[-N_LOGITS:].max()
            print(f"    {json.dumps(change)}: {moved:.1e}")
            assert moved > MATTERS, f"{name}: {change} does not matter"
        families[name] = {
            "config": config,
            "tensors": tensors,
            "input_ids": ids,
            "argmax": logits.argmax(-1).tolist(),
            "last_logits": logits[-N_LOGITS:].tolist(),
        }
    path = Path(__file__).parent / "families.json"
    path.write_text(layout(families))
    print(f"{len(families)} models, {path.stat().st_size} bytes")


def token_ids(name):
    bits = np.random.PCG64([len(name), *name.encode()]).random_raw(N_TOKENS)
    return (bits % np.uint64(61)).tolist()


def changed(config, change):
    """Return ``config`` with fields changed."""
    config = copy.deepcopy(config)
    for path, value in change.items():
        *fields, last = path.split("/")
        holder = config
        for field in fields:
            holder = holder[field]
        holder[last] = value
    return AutoConfig.for_model(**config)


def saved(config):
    """Return ``config.json`` as ``save_pretrained`` writes it, and shape, mean and spread of each tensor."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        written = json.loads((Path(directory) / "config.json").read_text())
        with safe_open(Path(directory) / "model.safetensors", "numpy") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    tensors = {name: [shape, *mean_and_spread(name, shape, written)] for name, shape in shapes.items()}
    return written, tensors


def mean_and_spread(name, shape, config):
    if name.endswith("bias"):
        return 0.0, 0.2
    if "norm" in name or ".ln_" in name:
        one_plus_weight = config["model_type"].startswith("gemma")
        return 0.0 if one_plus_weight else 1.0, 0.2
    if any(part in name for part in ("embed_tokens", "embed_in", "wte")):
        # With a tied head, embeddings of size 1 would drown all but each token itself.
        return 0.0, 0.4 if config.get("tie_word_embeddings") else 1.0
    if any(part in name for part in ("lm_head", "embed_out")):
        gain = 2.5
    elif any(part in name for part in ("gate", "up_proj", "fc1", "fc_in", "c_fc", "h_to_4h")):
        gain = 2.0  # Where the kinds of GELU differ most.
    elif any(part in name for part in ("down_proj", "fc2", "fc_out", "c_proj", "4h_to_h")):
        gain = 2.5
    else:
        gain = 1.4
    return 0.0, round(gain * shape[-1] ** -0.5, 3)


def run(name, config, tensors, ids, dtype=torch.float32):
    """Return the logits after each of ``ids`` and the attention of every layer."""
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, config, make_weights(name, tensors))
        model, loading = AutoModelForCausalLM.from_pretrained(
            directory, attn_implementation="eager", dtype=dtype, output_loading_info=True
        )
    # Every tensor is named by the file.
    assert not any(loading.values()), loading
    model.eval()
    with torch.no_grad():
        output = model(torch.tensor([ids]), use_cache=False, output_attentions=True)
    attention = np.stack([layer[0].numpy() for layer in output.attentions])
    return output.logits[0].numpy(), attention


def layout(families):
    """Return ``families`` as JSON, one line a field or tensor; float32 in as few digits as give it back."""
    blocks = []
    for name, family in families.items():
        tensors = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in family["tensors"].items())
        rows = (", ".join(str(np.float32(logit)) for logit in row) for row in family["last_logits"])
        last_logits = ",\n".join(f"   [{row}]" for row in rows)
        blocks.append(
            f" {json.dumps(name)}: {{\n"
            f'  "config": {json.dumps(family["config"])},\n'
            f'  "tensors": {{\n{tensors}\n  }},\n'
            f'  "input_ids": {json.dumps(family["input_ids"])},\n'
            f'  "argmax": {json.dumps(family["argmax"])},\n'
            f'  "last_logits": [\n{last_logits}\n  ]\n'
            " }"
        )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    main()
