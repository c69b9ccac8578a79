"""Frequency schemes as the ``rope_type`` of a Hugging Face configuration and its keys describe them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checks import whole_number
from pytensor_rope.frequencies import (
    NTK,
    Default,
    DynamicNTK,
    FrequencyScheme,
    Linear,
    Llama3,
    LongRoPE,
    MRoPE,
    Proportional,
    YaRN,
)

_ORIGINAL = "original_max_position_embeddings"

# Keys that change nothing, and values that change nothing of keys that another type knows.
_HARMLESS = {"finetuned", "max_position_embeddings", _ORIGINAL}
_NEUTRAL = {"factor": 1, "attention_factor": 1, "attn_factor": 1, "extrapolation_factor": 1, "alpha": 0}
_NEUTRAL |= {"llama_4_scaling_beta": 0}

# Models that multiply the softmax scale by YaRN's magnitude squared: those with transformers'
# yarn_apply_mscale, and Kimi K2, which is a DeepSeek-V3.
_DEEPSEEK = {"axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"}
_DEEPSEEK |= {"glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "kimi_k2", "longcat_flash", "minicpm3", "mistral4"}
_DEEPSEEK |= {"mistral_large4_text", "youtu"}

# Whether a multimodal model's mrope_section is interleaved.
_INTERLEAVED = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "glm4v", "glm4v_moe"), False)
_INTERLEAVED |= dict.fromkeys(("glm_image", "glm_ocr", "paddleocr_vl"), False)
_INTERLEAVED |= dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_5", "qwen3_5_moe"), True)
_INTERLEAVED |= dict.fromkeys(("cohere_compass", "cosmos3_edge", "hy_v4_vl", "qwen4_exp"), True)


def scheme_of(rope_type: str, values: Mapping[str, Any], longest: int | None, model: str) -> FrequencyScheme:
    """
    Build the scheme that a ``rope_type`` and its keys describe.

    Parameters
    ----------
    rope_type : str
        Name of the type.
    values : mapping
        Its keys, each of which has to be understood.
    longest : int or None
        The configuration's ``max_position_embeddings``, if it has them.
    model : str
        The configuration's ``model_type``, empty if it has none.

    Returns
    -------
    FrequencyScheme

    Raises
    ------
    CheckpointError
        If a key is missing or unknown, or the type is.
    TypeError, ValueError
        If a value is wrong.
    """
    if rope_type not in _READERS:
        known = ", ".join(sorted({*_READERS, "mrope", "none", "su"}))
        raise CheckpointError(f"unknown rope_type {rope_type!r}; known are {known}.")
    reader = _Reader(rope_type, values, longest, model)
    scheme = _with_sections(reader, _READERS[rope_type](reader))
    reader.finish()
    return scheme


def agreed(given: list[tuple[str, Any]]) -> Any:
    """Return the value that is given under several names, refusing different ones."""
    (first, value), *others = given
    for name, other in others:
        if other != value:
            raise CheckpointError(
                f"{first} is {value!r}, but {name} is {other!r}: they contradict each other. Keep the one "
                f"that is right."
            )
    return value


class _Reader:
    """The keys of one type, each of which has to be asked for."""

    def __init__(self, rope_type: str, values: Mapping[str, Any], longest: int | None, model: str) -> None:
        self.rope_type, self.model, self._longest = rope_type, model, longest
        self._unread = dict(values)

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self._unread.pop(key, default)

    def need(self, key: str, hint: str = "") -> Any:
        """Return a value that can't be left out."""
        if key not in self._unread:
            raise CheckpointError(
                f"rope_type {self.rope_type!r} needs {key}, which is missing. Add it to rope_scaling or "
                f"rope_parameters{hint}."
            )
        return self._unread.pop(key)

    def original(self) -> int:
        """Return the length before stretching."""
        hint = f"; transformers takes max_position_embeddings, {self._longest}, where it is missing"
        return whole_number(_ORIGINAL, self.need(_ORIGINAL, hint if self._longest else ""), least=1)

    def longest(self) -> int:
        """Return the length after stretching."""
        if self._longest is None:
            raise CheckpointError(
                f"rope_type {self.rope_type!r} needs max_position_embeddings, which is missing. Add it to "
                f"the configuration."
            )
        return self._longest

    def finish(self) -> None:
        """Refuse what nobody asked for, unless it changes nothing."""
        left = sorted(
            key
            for key, value in self._unread.items()
            if key not in _HARMLESS and not (key in _NEUTRAL and value == _NEUTRAL[key])
        )
        if left:
            raise CheckpointError(
                f"rope_type {self.rope_type!r} has {', '.join(left)}, which isn't implemented for it and may "
                f"change the frequencies. Take it out if it doesn't."
            )


def _default(reader: _Reader) -> FrequencyScheme:
    return Default()


def _linear(reader: _Reader) -> FrequencyScheme:
    return Linear(factor=reader.need("factor"))


def _ntk(reader: _Reader) -> FrequencyScheme:
    return NTK(factor=reader.need("factor"))


def _dynamic(reader: _Reader) -> FrequencyScheme:
    alpha = reader.take("alpha")
    if alpha:  # Hunyuan's: it is static, and what else they give has no effect.
        for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
            reader.take(key)
        return NTK(factor=alpha)
    factor, longest = reader.need("factor"), reader.longest()
    agreed([("max_position_embeddings", longest), (_ORIGINAL, reader.take(_ORIGINAL, longest))])
    return DynamicNTK(factor=factor, original_max_position_embeddings=longest)


def _yarn(reader: _Reader) -> FrequencyScheme:
    return YaRN(
        **_yarn_range(reader),
        mscale=reader.take("mscale"),
        mscale_all_dim=reader.take("mscale_all_dim"),
        attention_factor=reader.take("attention_factor"),
        softmax_correction=reader.model in _DEEPSEEK,
    )


def _telechat3(reader: _Reader) -> FrequencyScheme:
    values = _yarn_range(reader)
    return YaRN(**values, attention_factor=1 + 0.07 * math.log(max(values["factor"], 1)))


def _yarn_range(reader: _Reader) -> dict[str, Any]:
    original = reader.original()
    factor = reader.take("factor")
    return {
        "factor": reader.longest() / original if factor is None else factor,
        "original_max_position_embeddings": original,
        "beta_fast": reader.take("beta_fast") or 32,
        "beta_slow": reader.take("beta_slow") or 1,
        "truncate": reader.take("truncate", True),
    }


def _longrope(reader: _Reader) -> FrequencyScheme:
    original = reader.original()
    factor, attention_factor = reader.take("factor"), _longrope_magnitude(reader)
    if factor is None:
        factor = reader.longest() / original if attention_factor is None else 1
    return LongRoPE(
        short_factor=reader.need("short_factor"),
        long_factor=reader.need("long_factor"),
        original_max_position_embeddings=original,
        factor=factor,
        attention_factor=attention_factor,
    )


def _longrope_magnitude(reader: _Reader) -> float | None:
    """Return the attention factor, which Phi-3.5-MoE gives once for each set of factors."""
    given = [(key, reader.take(key)) for key in ("attention_factor", "short_mscale", "long_mscale")]
    given = [(key, value) for key, value in given if value is not None]
    magnitude: float | None = agreed(given) if given else None
    if [key for key, _ in given if key.endswith("mscale")] in (["short_mscale"], ["long_mscale"]):
        raise CheckpointError("short_mscale and long_mscale go together, and one of them is missing. Add it.")
    return magnitude


def _llama3(reader: _Reader) -> FrequencyScheme:
    return Llama3(
        factor=reader.need("factor"),
        low_freq_factor=reader.need("low_freq_factor"),
        high_freq_factor=reader.need("high_freq_factor"),
        original_max_position_embeddings=reader.original(),
    )


def _proportional(reader: _Reader) -> FrequencyScheme:
    part = reader.take("partial_rotary_factor", 1)
    return Proportional(partial_rotary_factor=part, factor=reader.take("factor", 1))


_READERS: dict[str, Callable[[_Reader], FrequencyScheme]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "ntk": _ntk,
    "proportional": _proportional,
    "telechat3-yarn": _telechat3,
    "yarn": _yarn,
}


def _with_sections(reader: _Reader, scheme: FrequencyScheme) -> FrequencyScheme:
    """Return the scheme turned by several position axes, if the model has them."""
    is_mrope, section = reader.take("mrope"), reader.take("mrope_section")
    order = [(key, reader.take(key)) for key in ("mrope_interleaved", "interleaved")]
    order = [(key, value) for key, value in order if value is not None]
    family = reader.model.removesuffix("_text")
    if family in _INTERLEAVED:
        order.append((f"the order of {family}", _INTERLEAVED[family]))
    if section is None and not is_mrope and not order:
        return scheme
    if section is None:
        raise CheckpointError("mrope_section is missing. Add the number of pairs that turn with each axis.")
    if not isinstance(section, list | tuple) or len(section) != 3:
        raise CheckpointError(f"mrope_section is {section!r}: three numbers of pairs are needed.")
    if reader.model and not order:
        raise CheckpointError(
            f"mrope_interleaved is missing, and the order that {reader.model} has isn't known. Add it."
        )
    return MRoPE(section=tuple(section), interleaved=agreed(order) if order else False, scaling=scheme)
