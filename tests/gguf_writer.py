"""
A test's way from a model as transformers saves it to a GGUF file, as llama.cpp's converter goes it.

What it writes was compared with what the converter of llama-cpp-python 0.3.36 writes, key by key and tensor
by tensor; the vocabulary was left out.
"""

import math

import gguf
import numpy as np


def write_gguf(path, architecture, metadata, arrays, storage="F32"):
    """Write a GGUF file. Whole numbers become uint32 and the others float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.data_alignment = metadata.get("general.alignment", 32)
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    for name, array in arrays.items():
        kind = gguf.GGMLQuantizationType[storage if array.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(config, tensors):
    """
    Return architecture, metadata and tensors of the GGUF file for a model.

    Parameters
    ----------
    config : dict
        Its config.json, in the keys of transformers 5.
    tensors : dict of str to ndarray
        Its tensors by their names in transformers.
    """
    model_type = config["model_type"]
    architecture = ARCHITECTURES[model_type]
    metadata = METADATA.get(model_type, usual_metadata)(config)
    arrays = {gguf_name(model_type, name): array for name, array in tensors.items()}
    arrays = {name: changed(model_type, config, name, array) for name, array in arrays.items()}
    arrays |= rope_factors(config)
    return architecture, {f"{architecture}.{key}": value for key, value in metadata.items()}, arrays


ARCHITECTURES = {
    "cohere": "command-r",
    "cohere2": "cohere2",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "glm": "chatglm",
    "glm4": "glm4",
    "gpt_neox": "gptneox",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "phi": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}

PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BOTH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OTHER_PARTS = {
    "gemma2": BOTH_NORMS,
    "gemma3_text": BOTH_NORMS,
    "olmo2": BOTH_NORMS,
    "olmo3": BOTH_NORMS,
    "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
    "phi": {
        "model.final_layernorm": "output_norm",
        "self_attn.dense": "attn_output",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    },
    "gpt_neox": {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
}


def gguf_name(model_type, name):
    parts = PARTS | OTHER_PARTS.get(model_type, {})
    stem, _, kind = name.rpartition(".")
    if stem in parts:
        return f"{parts[stem]}.{kind}"
    layer, _, part = stem.split("layers.", 1)[1].partition(".")
    return f"blk.{layer}.{parts[part]}.{kind}"


def changed(model_type, config, name, array):
    """Return a tensor as the converter changes it."""
    if model_type.startswith("gemma") and "norm" in name:
        return array + np.float32(1)
    if model_type in ("llama", "mistral", "smollm3", "granite") and ("attn_q." in name or "attn_k." in name):
        n_head = config["num_attention_heads" if "attn_q." in name else "num_key_value_heads"]
        halves = array.reshape(n_head, 2, len(array) // n_head // 2, -1)
        return halves.swapaxes(1, 2).reshape(array.shape)
    if model_type == "gpt_neox" and "attn_qkv" in name:
        by_head = array.reshape(config["num_attention_heads"], 3, -1, *array.shape[1:])
        return by_head.swapaxes(0, 1).reshape(array.shape)
    return array


def rope_factors(config):
    rope = full_rope(config)
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": llama3_factors(rope, head_dim(config))}
    if rope.get("rope_type") == "longrope" and config["model_type"] == "phi3":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("short", "long")
        }
    return {}


def llama3_factors(rope, dim):
    """Return what divides each frequency, by the float32 arithmetic of the converter."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    length, factors = rope["original_max_position_embeddings"], []
    for k in range(0, dim, 2):
        wavelength = np.float32(2 * math.pi) * np.float32(rope["rope_theta"] ** (k / dim))
        if wavelength < length / high:
            factors.append(1)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def full_rope(config):
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def usual_metadata(config):
    rope = full_rope(config)
    metadata = sizes(config) | {"rope.freq_base": float(rope["rope_theta"])}
    if rope["rope_type"] in ("linear", "yarn", "longrope"):
        metadata["rope.scaling.type"] = rope["rope_type"]
    if rope["rope_type"] in ("linear", "yarn"):
        metadata["rope.scaling.factor"] = rope["factor"]
    if rope["rope_type"] == "yarn":
        metadata["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        metadata |= {
            f"rope.scaling.yarn_{theirs}": float(rope[ours])
            for ours, theirs in (
                ("attention_factor", "attn_factor"),
                ("beta_fast", "beta_fast"),
                ("beta_slow", "beta_slow"),
            )
            if rope.get(ours) is not None
        }
    if "sliding_attention" in config["rope_parameters"]:
        base = config["rope_parameters"]["sliding_attention"]["rope_theta"]
        metadata["rope.freq_base_swa"] = float(base)
    return metadata | epsilon(config) | key_length(config)


def sizes(config):
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads", config["num_attention_heads"]),
    }


def epsilon(config):
    if "rms_norm_eps" in config:
        return {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"]}
    return {"attention.layer_norm_epsilon": config["layer_norm_eps"]}


def key_length(config):
    dim = config.get("head_dim")
    return {} if dim is None else {"attention.key_length": dim, "attention.value_length": dim}


def rotary_dim(config, usual=1.0):
    return int(head_dim(config) * full_rope(config).get("partial_rotary_factor", usual))


def llama(config):
    return usual_metadata(config) | {
        "vocab_size": config["vocab_size"],
        "rope.dimension_count": head_dim(config),
    }


def granite(config):
    return llama(config) | {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def cohere(config):
    return usual_metadata(config) | {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"}


def cohere2(config):
    return cohere(config) | {
        "attention.sliding_window": config["sliding_window"],
        "vocab_size": config["vocab_size"],
        "rope.dimension_count": head_dim(config),
    }


def glm(config):
    # The converter looks for three of these under ChatGLM's names only, and doesn't find them.
    return sizes(config) | {
        "context_length": config["hidden_size"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": rotary_dim(config, 0.5),
        "rope.freq_base": 10_000.0,
    }


def glm4(config):
    return usual_metadata(config) | {"rope.dimension_count": rotary_dim(config, 0.5)}


def gpt_neox(config):
    metadata = sizes(config) | epsilon(config)
    del metadata["attention.head_count_kv"]
    return metadata | {
        "use_parallel_residual": config["use_parallel_residual"],
        "rope.dimension_count": rotary_dim(config),
    }


def phi(config):
    metadata = sizes(config) | epsilon(config)
    return metadata | {
        "feed_forward_length": 4 * config["hidden_size"],
        "rope.dimension_count": rotary_dim(config),
    }


def phi3(config):
    rope = full_rope(config)
    metadata = sizes(config) | epsilon(config) | {"rope.freq_base": rope["rope_theta"]}
    longest, original = config["max_position_embeddings"], config["original_max_position_embeddings"]
    if rope["rope_type"] == "longrope":
        metadata["rope.scaling.attn_factor"] = math.sqrt(
            1 + math.log(longest / original) / math.log(original)
        )
    return metadata | {
        "rope.scaling.original_context_length": original,
        "rope.dimension_count": rotary_dim(config),
        "attention.sliding_window": config["sliding_window"] or 0,
    }


def olmo3(config):
    return usual_metadata(config) | {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
    }


def gemma(config):
    return sizes(config) | epsilon(config) | key_length(config)


def gemma2(config):
    return gemma(config) | {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "attention.sliding_window": config["sliding_window"],
    }


def gemma3(config):
    return usual_metadata(config) | {"attention.sliding_window": config["sliding_window"]}


METADATA = {
    "llama": llama,
    "mistral": llama,
    "smollm3": llama,
    "granite": granite,
    "cohere": cohere,
    "cohere2": cohere2,
    "glm": glm,
    "glm4": glm4,
    "gpt_neox": gpt_neox,
    "phi": phi,
    "phi3": phi3,
    "olmo3": olmo3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
}
