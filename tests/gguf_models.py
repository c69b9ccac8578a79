"""Models for tests of GGUF files: what the files mean, and where transformers has our weights."""

import json
import math
import struct
from pathlib import Path

import numpy as np
from gguf_writer import convert, write_gguf

from pytensor_rope import DecoderConfig
from pytensor_rope.checkpoints import load_checkpoint
from pytensor_rope.frequencies import Default, FrequencyFactors, Linear, LongRoPE, YaRN
from pytensor_rope.weights import weight_shapes

ZOO = Path(__file__).parent / "data" / "zoo"

VOCAB = 97
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*(chr(0x100 + i) for i in range(VOCAB - 1)), "\u0100\u0101"],
    "tokenizer.ggml.token_type": [1] * VOCAB,
    "tokenizer.ggml.merges": ["\u0100 \u0101"],
    "tokenizer.ggml.eos_token_id": 2,
}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "head_dim": 16,
    "context_length": 128,
}
COHERE = {
    "tied": True,
    "pairing": "adjacent",
    "norm": "layer",
    "residual": "parallel",
    "shared_norm": True,
    "logit_scale": 0.25,
}
GPT_NEOX = {
    "n_kv_head": 4,
    "rotary_dim": 4,
    "norm": "layer",
    "norm_bias": True,
    "residual": "parallel",
    "activation": "gelu",
    "gated": False,
    "qkv_bias": True,
    "output_bias": True,
    "feed_forward_bias": True,
}
GEMMA = {"tied": True, "epsilon": 1e-6, "activation": "gelu_tanh", "embedding_scale": 8.0}
GEMMA2 = GEMMA | {
    "n_layer": 4,
    "head_dim": 24,
    "norm_placement": "both",
    "attention_scale": 1 / math.sqrt(24),
    "attention_softcap": 50.0,
    "logit_softcap": 30.0,
    "sliding_window": 8,
    "sliding_layers": (True, False, True, False),
}
# Every layer of two slides: the sixth would be the first that doesn't, and the file doesn't say otherwise.
GEMMA3 = GEMMA | {
    "base": 1e6,
    "norm_placement": "both",
    "qk_norm": "head",
    "attention_scale": 0.25,
    "sliding_window": 8,
    "sliding_layers": (True, True),
    "sliding_base": 1e4,
    "sliding_scaling": Default(),
}
OLMO2 = {"base": 5e5, "norm_placement": "after", "qk_norm": "width"}
GLM = {"pairing": "adjacent", "rotary_dim": 8, "qkv_bias": True}
LLAMA3 = (1, 1.293975830078125, 7.667385101318359, 8, 8, 8, 8, 8)

IN_ZOO = {
    "cohere": COHERE,
    "gemma3": GEMMA3,
    "glm4": GLM | {"epsilon": 1.5625e-7, "norm_placement": "both"},
    "gpt_neox": GPT_NEOX,
    "granite": {
        "epsilon": 1e-6,
        "attention_scale": 0.1,
        "embedding_scale": 3.0,
        "residual_scale": 0.5,
        "logit_scale": 0.5,
    },
    "llama_default": {"epsilon": 1e-6},
    "llama_llama3": {"epsilon": 1e-6, "scaling": FrequencyFactors(factors=LLAMA3)},
    "llama_yarn_mscale": {
        "epsilon": 1e-6,
        "context_length": 512,
        "scaling": YaRN(factor=8.0, original_max_position_embeddings=64),
    },
    "mistral_sliding": {"epsilon": 1e-6},
    "olmo2": OLMO2,
    "phi3_partial": {"rotary_dim": 12},
    "qwen2": {"epsilon": 1e-6, "base": 1e6, "qkv_bias": True},
    "qwen3": {"epsilon": 1e-6, "base": 1e6, "qk_norm": "head"},
    "smollm3": {"epsilon": 1e-6, "base": 2e6, "rotated_layers": (True, True)},
}

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
OF_GEMMA = SMALL | {"head_dim": 24, "rms_norm_eps": 1e-6}
OF_COHERE = SMALL | {"layer_norm_eps": 1e-5, "logit_scale": 0.25}
SHORT, LONG = [1 + i / 8 for i in range(8)], [1.0 + i for i in range(8)]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e5,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
OF_GEMMA3 = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}

# The config.json of a model, and what its file means.
MADE = {
    "cohere2": (
        OF_COHERE | {"model_type": "cohere2", "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8},
        COHERE
        | {
            "n_layer": 4,
            "sliding_window": 8,
            "sliding_layers": (True, True, True, False),
            "rotated_layers": (True, True, True, False),
        },
    ),
    "cohere_qk_norm": (OF_COHERE | {"model_type": "cohere"}, COHERE | {"qk_norm": "heads"}),
    "gemma": (OF_GEMMA | {"model_type": "gemma"}, GEMMA | {"head_dim": 24}),
    "gemma2": (
        OF_GEMMA
        | {
            "model_type": "gemma2",
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        GEMMA2,
    ),
    "gemma3_seven_layers": (
        OF_GEMMA | OF_GEMMA3,
        GEMMA3
        | {
            "n_layer": 7,
            "head_dim": 24,
            "scaling": Linear(factor=8.0),
            "attention_scale": 1 / math.sqrt(24),
            "sliding_layers": (True,) * 5 + (False, True),
        },
    ),
    "glm": (SMALL | {"model_type": "glm", "head_dim": 16}, GLM | {"context_length": 64}),
    "gpt_neox_sequential": (
        SMALL
        | {
            "model_type": "gpt_neox",
            "use_parallel_residual": False,
            "layer_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "rope_parameters": {"partial_rotary_factor": 0.25},
        },
        GPT_NEOX | {"residual": "sequential"},
    ),
    "llama_biased": (
        SMALL | {"model_type": "llama", "rms_norm_eps": 1e-5},
        {"qkv_bias": True, "output_bias": True, "feed_forward_bias": True},
    ),
    "olmo3": (
        SMALL
        | {
            "model_type": "olmo3",
            "num_hidden_layers": 4,
            "rms_norm_eps": 1e-5,
            "rope_parameters": YARN,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
        OLMO2
        | {
            "n_layer": 4,
            "scaling": YaRN(factor=4.0, original_max_position_embeddings=32),
            "sliding_window": 8,
            "sliding_layers": (False, True, False, True),
            "sliding_scaling": Default(),
        },
    ),
    "phi": (
        SMALL
        | {
            "model_type": "phi",
            "intermediate_size": 256,
            "num_key_value_heads": 4,
            "layer_norm_eps": 1e-5,
            "rope_parameters": {"partial_rotary_factor": 0.5},
        },
        GPT_NEOX
        | {
            "intermediate_size": 256,
            "rotary_dim": 8,
            "shared_norm": True,
            "activation": "gelu_tanh",
            "head_bias": True,
        },
    ),
    "phi3_longrope": (
        SMALL
        | {
            "model_type": "phi3",
            "rms_norm_eps": 1e-5,
            "sliding_window": 20,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": SHORT,
                "long_factor": LONG,
            },
        },
        {
            "sliding_window": 20,
            "scaling": LongRoPE(
                short_factor=SHORT,
                long_factor=LONG,
                original_max_position_embeddings=32,
                attention_factor=float(str(np.float32(math.sqrt(1 + math.log(4) / math.log(32))))),
            ),
        },
    ),
    "phi3_tied": (
        SMALL
        | {
            "model_type": "phi3",
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "original_max_position_embeddings": 128,
        },
        {"tied": True},
    ),
    "gpt_neox_tied": (
        SMALL
        | {
            "model_type": "gpt_neox",
            "use_parallel_residual": True,
            "layer_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "rope_parameters": {"partial_rotary_factor": 0.25},
        },
        GPT_NEOX | {"tied": True, "qkv_bias": False, "output_bias": False},
    ),
    "olmo2_tied": (
        SMALL | {"model_type": "olmo2", "rms_norm_eps": 1e-5},
        {"tied": True, "norm_placement": "after", "qk_norm": "width"},
    ),
    "qwen3_biased": (
        SMALL | {"model_type": "qwen3", "rms_norm_eps": 1e-5},
        {"qk_norm": "head", "qkv_bias": True, "output_bias": True},
    ),
    "qwen2_head_bias": (
        SMALL | {"model_type": "qwen2", "rms_norm_eps": 1e-5},
        {"qkv_bias": True, "head_bias": True},
    ),
    "smollm3_five_layers": (
        SMALL | {"model_type": "smollm3", "num_hidden_layers": 5, "rms_norm_eps": 1e-5},
        {
            "n_layer": 5,
            "tied": True,
            "feed_forward_bias": True,
            "rotated_layers": (True, True, True, False, True),
        },
    ),
}

# What each of our weights is in transformers, where a fused tensor holds it the number of its part.
PARTS = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
OUTSIDE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
BOTH_NORMS = {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
FUSED_QKV = {name: ("self_attn.qkv_proj", i) for i, name in enumerate(("query", "key", "value"))}
FUSED_UP = {name: ("mlp.gate_up_proj", i) for i, name in enumerate(("gate", "up"))}
OTHER_PARTS = {
    "gemma2": BOTH_NORMS,
    "gemma3_text": BOTH_NORMS,
    "olmo2": BOTH_NORMS,
    "olmo3": BOTH_NORMS,
    "glm": FUSED_UP,
    "glm4": FUSED_UP
    | {
        "attention_output_norm": "post_self_attn_layernorm",
        "feed_forward_output_norm": "post_mlp_layernorm",
    },
    "phi3": FUSED_QKV | FUSED_UP,
    "phi": {"output": "self_attn.dense", "up": "mlp.fc1", "down": "mlp.fc2"},
    "gpt_neox": {name: ("attention.query_key_value", i) for i, name in enumerate(("query", "key", "value"))}
    | {"output": "attention.dense", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"},
}
OTHER_OUTSIDE = {
    "phi": {"final_norm": "model.final_layernorm"},
    "gpt_neox": {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
    },
}


def source(model_type, name):
    """Return the name in transformers of one of our weights, and which part of that tensor it is."""
    stem, kind = (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")
    if not stem.startswith("layers."):
        return f"{(OUTSIDE | OTHER_OUTSIDE.get(model_type, {}))[stem]}.{kind}", None
    _, layer, part = stem.split(".")
    theirs = (PARTS | OTHER_PARTS.get(model_type, {}))[part]
    theirs, index = theirs if isinstance(theirs, tuple) else (theirs, None)
    root = "gpt_neox" if model_type == "gpt_neox" else "model"
    return f"{root}.layers.{layer}.{theirs}.{kind}", index


def random_tensors(model_type, config):
    """Return random tensors of transformers for a configuration, whatever ours of them are."""
    rng = np.random.default_rng(0)
    parts = {}
    for name, shape in weight_shapes(config).items():
        theirs, _ = source(model_type, name)
        is_matrix = len(shape) == 2 and name != "embedding" and not name.endswith("norm")
        parts.setdefault(theirs, []).append(shape[::-1] if is_matrix else shape)
    return {
        theirs: rng.normal(size=(sum(shape[0] for shape in shapes), *shapes[0][1:])).astype(np.float32)
        for theirs, shapes in parts.items()
    }


def meant(model_type, config, tensors):
    """Return our weights of the tensors of transformers."""

    def ours(name, shape):
        theirs, index = source(model_type, name)
        array = tensors[theirs]
        if index is not None and model_type == "gpt_neox":
            by_head = array.reshape(config.n_head, 3, config.head_dim, *array.shape[1:])
            array = by_head[:, index].reshape(-1, *array.shape[1:])
        elif index is not None and "gate_up" in theirs:
            array = np.split(array, 2)[index]
        elif index is not None:
            n_query, n_key = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
            array = np.split(array, [n_query, n_query + n_key])[index]
        if model_type.startswith("gemma") and "norm" in name:
            array = array + np.float32(1)
        is_matrix = len(shape) == 2 and name != "embedding" and not name.endswith("norm")
        return array.T if is_matrix else array

    return {name: ours(name, shape) for name, shape in weight_shapes(config).items()}


def read_safetensors(path):
    content = path.read_bytes()
    (n_header,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + n_header])
    header.pop("__metadata__", None)
    data = content[8 + n_header :]
    return {
        name: np.frombuffer(data[slice(*info["data_offsets"])], np.float32).reshape(info["shape"])
        for name, info in header.items()
    }


def zoo(name):
    """Return the config.json and the tensors of a model of the zoo."""
    folder = ZOO / name
    return json.loads((folder / "config.json").read_text()), read_safetensors(folder / "model.safetensors")


def made(name):
    """Return what the file of a model holds: architecture, metadata, tensors; its config and its tensors."""
    theirs, own = MADE[name]
    config = DecoderConfig(**SIZES | own)
    tensors = random_tensors(theirs["model_type"], config)
    return *convert(theirs, tensors), config, tensors


def load(path, architecture, metadata, arrays, **other_metadata):
    other = {f"{architecture}.{key}": value for key, value in other_metadata.items()}
    return load_checkpoint(write_gguf(path, architecture, metadata | TOKENIZER | other, arrays))


def file_of(name):
    """Return what the file of a model holds: architecture, metadata and tensors."""
    return made(name)[:3] if name in MADE else convert(*zoo(name))
