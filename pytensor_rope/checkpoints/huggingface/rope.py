"""
Rotary frequencies as a Hugging Face ``config.json`` describes them.

The keys of transformers 4 and 5, at the top level and in ``rope_scaling`` or ``rope_parameters``, are merged
into one set of values for each type of layer. A value given in two places has to be the same in both.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytensor_rope.checkpoints.base import CheckpointError, RotaryFrequencies
from pytensor_rope.checkpoints.huggingface.rope_types import agreed, scheme_of
from pytensor_rope.checks import positive_number, whole_number

Config = Mapping[str, Any]
Values = dict[str, Any]

# The names at the top level that one value goes by.
_BASE = ("rope_theta", "rotary_emb_base", "global_rope_theta")
_LOCAL_BASE = ("rope_local_base_freq", "local_rope_theta")
_PART = ("partial_rotary_factor", "rotary_pct", "rope_pct")
_ROTARY_DIM = ("rotary_dim", "rotary_ndims", "qk_rope_head_dim")
_HIDDEN_SIZE = ("hidden_size", "n_embd")
_N_HEAD = ("num_attention_heads", "n_head")
_LONGEST = ("max_position_embeddings", "n_positions")
_ORIGINAL = "original_max_position_embeddings"
_SECTIONS = ("rope_parameters", "rope_scaling")
_ROPE_KEYS = {*_SECTIONS, *_BASE, *_LOCAL_BASE, *_PART, *_ROTARY_DIM, _ORIGINAL}

# They say which dimensions make a pair, or which layers aren't rotated.
_HARMLESS_KEYS = {"rope_interleave", "rope_interleaved", "indexer_rope_interleave", "no_rope_layers"}
_HARMLESS_KEYS |= {"no_rope_layer_interval"}

_RENAMED = {"none": "default", "mrope": "default", "su": "longrope"}

# What transformers fills in where a model's file leaves it out.
_DEFAULTS: dict[str, dict[str, float]] = {
    "codegen": {"rope_theta": 10_000.0, "rotary_dim": 64},
    "falcon": {"rope_theta": 10_000.0},
    "gemma": {"rope_theta": 10_000.0, "head_dim": 256},
    "gemma2": {"rope_theta": 10_000.0, "head_dim": 256},
    "gemma3_text": {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "head_dim": 256},
    "gemma3n_text": {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "head_dim": 256},
    "gemma4_text": {"head_dim": 256, "global_head_dim": 512},
    "glm": {"partial_rotary_factor": 0.5, "head_dim": 128},
    "glm4": {"partial_rotary_factor": 0.5, "head_dim": 128},
    "glm4_moe": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
    "gpt_oss": {"head_dim": 64},
    "gptj": {"rope_theta": 10_000.0, "rotary_dim": 64},
    "llama": {"rope_theta": 10_000.0},
    "mistral": {"rope_theta": 10_000.0},
    "nemotron": {"partial_rotary_factor": 0.5},
    "persimmon": {"partial_rotary_factor": 0.5},
    "phi": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    "phi3": {"rope_theta": 10_000.0},
    "qwen2": {"rope_theta": 10_000.0},
    "qwen3": {"head_dim": 128},
    "qwen3_5_moe_text": {"partial_rotary_factor": 0.25, "head_dim": 256},
    "qwen3_5_text": {"partial_rotary_factor": 0.25, "head_dim": 256},
    "qwen3_next": {"partial_rotary_factor": 0.25, "head_dim": 256},
    "qwen3_vl_text": {"head_dim": 128},
    "recurrent_gemma": {"partial_rotary_factor": 0.5},
    "stablelm": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
}

# Models whose rope_scaling is meant for the layers of full attention alone.
_SLIDING_IS_PLAIN = {"gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "olmo3", "t5gemma2_text"}

# Models that transformers scales even where the file says nothing about it.
_ALWAYS_SCALED = {"apertus", "cwm", "gemma4_text", "gpt_oss", "laguna", "lfm3", "mellum", "mimo_v2_flash"}
_ALWAYS_SCALED |= {"ministral3", "mistral4", "mistral_large4_text", "zaya"}


def config_frequencies(config: Config, layer_type: str | None) -> RotaryFrequencies:
    """Read scheme, base and rotary dimension for the layers of one type."""
    config = _text_config(config)
    _refuse_unknown_keys(config)
    layers = _layers(config)
    if None in layers:
        _check_layer_type(config, layer_type)
        return _resolve(config, layers[None] or {}, layer_type)
    return _of_layer(config, layers, layer_type)


def _text_config(config: Config) -> Config:
    """Return the language model's part of a multimodal model's configuration."""
    text = config.get("text_config")
    if not isinstance(text, Mapping) or not (_rope_keys(text) or not _rope_keys(config)):
        return config
    for key in _rope_keys(text) & _rope_keys(config):
        agreed([(key, config[key]), (f"text_config.{key}", text[key])])
    return text


def _rope_keys(config: Config) -> set[str]:
    return {key for key in _ROPE_KEYS if config.get(key) is not None}


def _refuse_unknown_keys(config: Config) -> None:
    known = _ROPE_KEYS | _HARMLESS_KEYS
    unknown = sorted(
        key
        for key, value in config.items()
        if re.search("(^|_)m?rope(_|$)|rotary", key) and key not in known and value not in (None, False)
    )
    if unknown:
        raise CheckpointError(
            f"the configuration has {', '.join(unknown)}, which isn't implemented and may change the "
            f"frequencies. Take it out of the mapping if it doesn't."
        )


# Values of each type of layer


def _layers(config: Config) -> dict[str | None, Values | None]:
    """Return the values of each type of layer, None where it isn't rotated; under None if all share them."""
    sections = {name: _section(config, name) for name in _SECTIONS}
    nested = {name for name, section in sections.items() if _is_nested(name, section)}
    names: list[str | None] = list(dict.fromkeys(layer for name in nested for layer in sections[name]))
    if not names:
        names = ["full_attention", "sliding_attention"] if _sliding_is_plain(config) else [None]
    layers: dict[str | None, Values | None] = {}
    for layer in names:
        parts = []
        for name, section in sections.items():
            if name in nested:
                parts.append((f"{name}.{layer}", section.get(layer, {})))
            elif not (layer == "sliding_attention" and _sliding_is_plain(config)):
                parts.append((name, section))
        rotated = all(part is not None for _, part in parts)
        layers[layer] = _merged(config, parts, layer) if rotated else None
    return layers


def _section(config: Config, name: str) -> Mapping[str | None, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{name} is {section!r}: an object with keys is needed, or null.")
    return section


def _is_nested(name: str, section: Mapping[str | None, Any]) -> bool:
    nested = [isinstance(value, Mapping) for value in section.values()]
    if any(nested) and not all(isinstance(value, Mapping | None) for value in section.values()):
        raise CheckpointError(
            f"{name} has values beside those of the layer types: {', '.join(map(str, section))}. Put each "
            f"into the layer types that it is meant for."
        )
    return any(nested)


def _sliding_is_plain(config: Config) -> bool:
    return _has_local_base(config) or _model(config) in _SLIDING_IS_PLAIN


def _has_local_base(config: Config) -> bool:
    given = any(config.get(key) is not None for key in _LOCAL_BASE)
    return given or "rope_local_base_freq" in _defaults(config)


def _merged(config: Config, parts: list[tuple[str, Config]], layer: str | None) -> Values:
    """Return the values for one layer type from all places that have one, refusing contradictions."""
    places: dict[str, list[tuple[str, Any]]] = {}
    for name, key, value in _places(config, parts, layer):
        if value is not None:
            places.setdefault(key, []).append((name, value))
    return {key: agreed(given) for key, given in places.items()}


def _places(
    config: Config, parts: list[tuple[str, Config]], layer: str | None
) -> Iterator[tuple[str, str, Any]]:
    for where, part in parts:
        for key, value in part.items():
            if key in ("type", "rope_type"):
                if value is not None and not isinstance(value, str):
                    raise CheckpointError(f"{where}.{key} is {value!r}: a name is needed.")
                yield f"{where}.{key}", "rope_type", _RENAMED.get(value or "", value)
                yield f"{where}.{key}", "mrope", True if value == "mrope" else None
            else:
                yield f"{where}.{key}", key, value
    for key in _base_keys(config, parts, layer):
        yield key, "rope_theta", config.get(key)
    for key in _PART:
        yield key, "partial_rotary_factor", config.get(key)
    yield _ORIGINAL, _ORIGINAL, config.get(_ORIGINAL)


def _base_keys(config: Config, parts: list[tuple[str, Config]], layer: str | None) -> tuple[str, ...]:
    """Return the names at the top level of the base that this type of layer has."""
    if layer != "sliding_attention":
        return _BASE
    inside = any(part.get("rope_theta") is not None for _, part in parts)
    return _LOCAL_BASE if inside or _has_local_base(config) else _BASE


def _one_of(config: Config, names: tuple[str, ...]) -> Any:
    """Return the value of whichever of these names the configuration has, None if it has none."""
    given = [(name, config[name]) for name in names if config.get(name) is not None]
    return agreed(given) if given else None


def _defaults(config: Config) -> Mapping[str, float]:
    return _DEFAULTS.get(_model(config), {})


def _model(config: Config) -> str:
    return str(config.get("model_type") or "")


def _of_layer(
    config: Config, layers: dict[str | None, Values | None], layer_type: str | None
) -> RotaryFrequencies:
    names = ", ".join(map(str, layers))
    if layer_type is not None:
        if layer_type not in layers:
            raise CheckpointError(f"no layer type {layer_type!r} in the configuration, which has {names}.")
        values = layers[layer_type]
        if values is None:
            raise CheckpointError(f"the layers of type {layer_type!r} aren't rotated.")
        return _resolve(config, values, layer_type)
    found = [None if values is None else _resolve(config, values, name) for name, values in layers.items()]
    if found[0] is None or any(other != found[0] for other in found):
        raise CheckpointError(f"the frequencies differ by layer type: pass layer_type, one of {names}.")
    return found[0]


def _check_layer_type(config: Config, layer_type: str | None) -> None:
    listed = config.get("layer_types")
    listed = map(str, listed) if isinstance(listed, list | tuple) else ()
    known = dict.fromkeys((*listed, "full_attention", "sliding_attention"))
    if layer_type is not None and layer_type not in known:
        raise CheckpointError(f"no layer type {layer_type!r}; known are {', '.join(known)}.")


# From the values to the frequencies


def _resolve(config: Config, values: Values, layer: str | None) -> RotaryFrequencies:
    rope_type = values.pop("rope_type", "default")
    model = _model(config)
    if rope_type == "default" and model in _ALWAYS_SCALED and not any(map(config.get, _SECTIONS)):
        raise CheckpointError(f"rope_parameters are missing, and {model} doesn't do without. Add them.")
    try:
        base = _base(config, values, layer)
        rotary_dim = _rotary_dim(config, values, rope_type, layer)
        longest = _one_of(config, _LONGEST)
        if longest is not None:
            longest = whole_number("max_position_embeddings", longest, least=1)
        scheme = scheme_of(rope_type, values, longest, model)
        scheme.check(rotary_dim, base)
    except CheckpointError:
        raise
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"rope_type {rope_type!r}: {error}") from error
    return RotaryFrequencies(scheme, base, rotary_dim)


def _base(config: Config, values: Values, layer: str | None) -> float:
    defaults = _defaults(config)
    default = defaults.get("rope_theta")
    if layer == "sliding_attention":
        default = defaults.get("rope_local_base_freq", default)
    base = values.pop("rope_theta", default)
    if base is None:
        raise CheckpointError(
            "rope_theta is missing, and its default depends on the model: add it to the configuration."
        )
    return positive_number("rope_theta", base)


def _rotary_dim(config: Config, values: Values, rope_type: str, layer: str | None) -> int:
    """Return the number of rotated dimensions, from all that the configuration says about it."""
    explicit, head_dim = _one_of(config, _ROTARY_DIM), _head_dim(config, layer)
    if rope_type == "proportional":
        d, source = _needed(head_dim), "head_dim"
        agreed([("head_dim", d), ("rotary_dim", d if explicit is None else explicit)])
        return _even(d, source)
    part = values.pop("partial_rotary_factor", None)
    if part is None and explicit is None:
        part, explicit = (_defaults(config).get(key) for key in ("partial_rotary_factor", "rotary_dim"))
    if part is not None:
        part = positive_number("partial_rotary_factor", part)
        if part > 1:
            raise CheckpointError(f"partial_rotary_factor is {part}: it is a part of the head, at most 1.")
    if explicit is not None:
        return _even(_checked(config, whole_number("rotary_dim", explicit, least=1), part, head_dim))
    if part is None:
        return _even(_needed(head_dim), "head_dim")
    return _even(int(_needed(head_dim) * part), f"head_dim {head_dim} times partial_rotary_factor {part}")


def _checked(config: Config, d: int, part: float | None, head_dim: int | None) -> int:
    """Return a rotary dimension, refusing one that is not the part of the head which is given too."""
    heads = [head_dim or d]
    if config.get("qk_rope_head_dim") is not None:
        # head_dim may be the part that is rotated, or the whole head, or another module's.
        heads += [d, d + whole_number("qk_nope_head_dim", config.get("qk_nope_head_dim") or 0, least=0)]
    elif d > heads[0]:
        raise CheckpointError(f"rotary_dim is {d}, more than head_dim, {head_dim}. Correct one of them.")
    if part is not None and d not in [int(head * part) for head in heads]:
        raise CheckpointError(
            f"partial_rotary_factor {part} of head_dim {head_dim} contradicts the rotary dimension {d}, "
            f"which is given too. Keep the one that is right."
        )
    return d


def _even(d: int, source: str = "") -> int:
    if d < 2 or d % 2:
        origin = f", from {source}," if source else ""
        raise CheckpointError(
            f"the rotary dimension{origin} is {d}: a positive even number is needed, since dimensions are "
            f"rotated in pairs."
        )
    return d


def _head_dim(config: Config, layer: str | None) -> int | None:
    names = ("global_head_dim", "head_dim") if layer == "full_attention" else ("head_dim",)
    for values in (config, _defaults(config)):
        for name in names:
            if values.get(name) is not None:
                return whole_number(name, values[name], least=1)
    hidden_size, n_head = _one_of(config, _HIDDEN_SIZE), _one_of(config, _N_HEAD)
    if hidden_size is None or n_head is None:
        return None
    return whole_number("hidden_size", hidden_size, least=1) // whole_number("n_head", n_head, least=1)


def _needed(head_dim: int | None) -> int:
    if head_dim is None:
        raise CheckpointError(
            "head_dim is missing, and so are hidden_size and num_attention_heads to compute it from: add "
            "head_dim to the configuration."
        )
    return head_dim
