"""
Rotary frequencies as GGUF metadata describes them.

What a key means is what llama.cpp makes of it, as far as that was read there; the rest is refused.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, RotaryFrequencies
from pytensor_rope.checkpoints.hyperparameters import Hyperparameters
from pytensor_rope.checks import positive_number, whole_number
from pytensor_rope.frequencies import (
    Default,
    FrequencyFactors,
    FrequencyScheme,
    Linear,
    LongRoPE,
    MRoPE,
    YaRN,
)

# Whether the pairs of an architecture's position axes are interleaved: llama.cpp's IMROPE and MROPE.
_INTERLEAVED = {"qwen2vl": False, "paddleocr": False, "glm4": False, "glm4moe": False}
_INTERLEAVED |= {"qwen3vl": True, "qwen3vlmoe": True, "qwen35": True, "qwen35moe": True}

# Bases of sliding layers that llama.cpp has in its code. These layers aren't scaled.
_SLIDING_BASE = {"gemma3": 10_000.0, "gemma3n": 10_000.0, "gemma-embedding": 10_000.0, "laguna": 10_000.0}


# Files of these don't name their scaling: the tensors of LongRoPE's factors do.
_SCALED_BY_TENSORS = ("phi3", "phimoe")


class LayerFrequencies(NamedTuple):
    """
    What gives the layers of a model their inverse frequencies.

    Attributes
    ----------
    full : RotaryFrequencies
        Those of the layers that see everything.
    sliding_base : float
        Base of the sliding layers, ``full.base`` unless they have their own.
    sliding_dim : int
        Their number of rotated dimensions, ``full.rotary_dim`` unless they have their own.
    has_sliding : bool
        Whether the file or llama.cpp's code says something of them.
    """

    full: RotaryFrequencies
    sliding_base: float
    sliding_dim: int
    has_sliding: bool


def metadata_frequencies(
    metadata: Mapping[str, Any], layer_type: str | None, rope_freqs: npt.ArrayLike | None
) -> RotaryFrequencies:
    """Read scheme, base and rotary dimension from a file's metadata."""
    architecture = str(metadata["general.architecture"])
    prefix = f"{architecture}."
    rope = {key: value for key, value in metadata.items() if key.startswith(f"{prefix}rope.")}
    keys = Hyperparameters(rope, prefix)
    try:
        frequencies = gguf_frequencies(
            keys,
            architecture,
            head_dim=_head_dim(metadata, prefix),
            context_length=metadata.get(f"{prefix}context_length"),
            layer_type=layer_type,
            rope_freqs=rope_freqs,
        )
    except CheckpointError:
        raise
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{prefix}rope: {error}") from error
    keys.finish()
    return frequencies


def gguf_frequencies(
    keys: Hyperparameters,
    architecture: str,
    *,
    head_dim: int | None,
    context_length: int | None,
    layer_type: str | None = None,
    rope_freqs: npt.ArrayLike | None = None,
) -> RotaryFrequencies:
    """
    Read scheme, base and rotary dimension from the keys that begin with ``rope.``, asking for them all.

    Parameters
    ----------
    keys : Hyperparameters
        The keys of the architecture.
    architecture : str
        Its name.
    head_dim : int or None
        Dimensions of a head, where the metadata say how many.
    context_length : int or None
        Longest sequence that the model is meant for, likewise.
    layer_type : str, optional
        ``"full_attention"`` or ``"sliding_attention"``; needed where they differ.
    rope_freqs : array_like, optional
        The factors that the file holds as a tensor, ``(rotary_dim // 2,)``, or LongRoPE's short and long
        ones, ``(2, rotary_dim // 2)``.

    Returns
    -------
    RotaryFrequencies

    Raises
    ------
    CheckpointError
        If a key is missing or isn't implemented.
    TypeError, ValueError
        If a value is wrong.
    """
    layers = layer_frequencies(
        keys, architecture, head_dim=head_dim, context_length=context_length, rope_freqs=rope_freqs
    )
    return _of_layer(layer_type, layers, _sliding(architecture, layers))


def layer_frequencies(
    keys: Hyperparameters,
    architecture: str,
    *,
    head_dim: int | None,
    context_length: int | None,
    rope_freqs: npt.ArrayLike | None = None,
) -> LayerFrequencies:
    """Read what :func:`gguf_frequencies` reads, for all kinds of layers at once."""
    base = positive_number("rope.freq_base", keys.real("rope.freq_base", 10_000.0))
    sliding_base = keys.real("rope.freq_base_swa", _SLIDING_BASE.get(architecture, 0.0))
    if sliding_base < 0:
        raise CheckpointError(f"rope.freq_base_swa is {sliding_base}: a positive number is needed.")
    rotary_dim = _rotary_dim(keys, head_dim)
    sliding_dim = keys.integer("rope.dimension_count_swa", rotary_dim)
    scheme = _scaling(keys, architecture, context_length, rope_freqs)
    scheme = _with_sections(keys, architecture, scheme)
    scheme.check(rotary_dim, base)

    full = RotaryFrequencies(scheme, base, rotary_dim)
    has_sliding = sliding_base > 0 or sliding_dim != rotary_dim
    return LayerFrequencies(full, sliding_base or base, sliding_dim, has_sliding)


def _head_dim(metadata: Mapping[str, Any], prefix: str) -> int | None:
    key_length = metadata.get(f"{prefix}attention.key_length")
    if key_length is not None:
        return whole_number("attention.key_length", key_length, least=1)
    hidden_size, n_head = (metadata.get(prefix + key) for key in ("embedding_length", "attention.head_count"))
    if hidden_size is None or n_head is None:
        return None
    n_head = whole_number("attention.head_count", n_head, least=1)
    return whole_number("embedding_length", hidden_size, least=1) // n_head


def _rotary_dim(keys: Hyperparameters, head_dim: int | None) -> int:
    if head_dim is None:
        return keys.integer("rope.dimension_count")
    return keys.integer("rope.dimension_count", head_dim)


def _scaling(
    keys: Hyperparameters, architecture: str, context_length: int | None, rope_freqs: npt.ArrayLike | None
) -> FrequencyScheme:
    # A factor without a type means linear, as in llama.cpp; 0 stands for "not scaled".
    has_two = rope_freqs is not None and np.ndim(rope_freqs) == 2
    usual = "longrope" if has_two and architecture in _SCALED_BY_TENSORS else "linear"
    kind = keys.choice("rope.scaling.type", ("none", "linear", "yarn", "longrope"), usual)
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 0.0)) or 1.0
    magnitude = keys.real("rope.scaling.attn_factor", 0.0) or 1.0
    keys.expect("rope.scaling.alpha", 0.0)
    keys.ignore("rope.scaling.finetuned")
    if kind == "yarn":
        return _yarn(keys, architecture, factor, magnitude, context_length, rope_freqs)
    keys.expect("rope.scaling.yarn_ext_factor", 0.0, -1.0)
    keys.expect("rope.scaling.yarn_attn_factor", 1.0)
    keys.ignore(
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier"
    )
    if kind == "longrope":
        return _longrope(keys, factor, magnitude, context_length, rope_freqs)
    keys.ignore("rope.scaling.original_context_length")
    return _divided(1.0 if kind == "none" else factor, magnitude, rope_freqs)


def _divided(factor: float, magnitude: float, rope_freqs: npt.ArrayLike | None) -> FrequencyScheme:
    """Return the scheme that divides all frequencies by one factor, and each by its own."""
    if rope_freqs is not None:
        factors = [factor * own for own in _factors(rope_freqs, 1).tolist()]
        return FrequencyFactors(factors=tuple(factors), attention_factor=magnitude)
    if magnitude != 1:
        raise CheckpointError(
            f"rope.scaling.attn_factor is {magnitude} without YaRN or LongRoPE: this isn't implemented."
        )
    return Default() if factor == 1 else Linear(factor=factor)


def _longrope(
    keys: Hyperparameters,
    factor: float,
    magnitude: float,
    context_length: int | None,
    rope_freqs: npt.ArrayLike | None,
) -> FrequencyScheme:
    original = _original(keys, context_length)
    if factor != 1:
        raise CheckpointError(f"rope.scaling.factor is {factor} beside LongRoPE: this isn't implemented.")
    if rope_freqs is None:
        raise CheckpointError(
            "LongRoPE's factors are in the tensors rope_factors_short.weight and rope_factors_long.weight: "
            "pass both as rope_freqs."
        )
    if np.ndim(rope_freqs) == 1:
        return FrequencyFactors(factors=tuple(_factors(rope_freqs, 1).tolist()), attention_factor=magnitude)
    short, long = _factors(rope_freqs, 2).tolist()
    return LongRoPE(
        short_factor=tuple(short),
        long_factor=tuple(long),
        original_max_position_embeddings=original,
        attention_factor=magnitude,
    )


def _yarn(
    keys: Hyperparameters,
    architecture: str,
    factor: float,
    magnitude: float,
    context_length: int | None,
    rope_freqs: npt.ArrayLike | None,
) -> FrequencyScheme:
    if rope_freqs is not None:
        raise CheckpointError("rope_freqs beside YaRN: dividing the frequencies twice isn't implemented.")
    if architecture == "gpt-oss":
        raise CheckpointError(
            "gpt-oss leaves YaRN's range untruncated and llama.cpp truncates it, and the metadata don't say "
            "which is meant: read the frequencies from the model's config.json."
        )
    usual = 1 + 0.1 * math.log(max(factor, 1))
    keys.expect("rope.scaling.yarn_ext_factor", 1.0, -1.0)
    _expect_usual(keys, usual)
    all_dim = _deepseek_mscale(keys, architecture, magnitude)
    return YaRN(
        factor=factor,
        original_max_position_embeddings=_original(keys, context_length),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
        mscale=all_dim,
        mscale_all_dim=all_dim,
        attention_factor=None if magnitude == 1 else usual * magnitude,
        softmax_correction=all_dim is not None,
    )


def _expect_usual(keys: Hyperparameters, usual: float) -> None:
    """Refuse a magnitude that llama.cpp overwrites and others don't, unless both come to the same."""
    given = keys.real("rope.scaling.yarn_attn_factor", usual)
    if not math.isclose(given, usual, rel_tol=1e-6):
        raise CheckpointError(
            f"rope.scaling.yarn_attn_factor is {given}, and llama.cpp takes {usual} all the same: this isn't "
            f"implemented. Read the frequencies from the model's config.json."
        )


def _deepseek_mscale(keys: Hyperparameters, architecture: str, magnitude: float) -> float | None:
    """Return DeepSeek's mscale, which is mscale_all_dim too, and of which a tenth is in the file."""
    tenth = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    if (architecture == "deepseek2") != (tenth != 0):
        raise CheckpointError(
            f"rope.scaling.yarn_log_multiplier is {tenth}: this isn't implemented for {architecture}."
        )
    if not tenth:
        return None
    if magnitude != 1:
        raise CheckpointError(
            f"rope.scaling.attn_factor is {magnitude} beside yarn_log_multiplier: this isn't implemented."
        )
    return round(10 * tenth, 6)


def _original(keys: Hyperparameters, context_length: int | None) -> int:
    key = "rope.scaling.original_context_length"
    return keys.integer(key) if context_length is None else keys.integer(key, context_length)


def _factors(rope_freqs: npt.ArrayLike, ndim: int) -> npt.NDArray[np.float64]:
    factors = np.asarray(rope_freqs, dtype=np.float64)
    if factors.ndim != ndim or (ndim == 2 and len(factors) != 2):
        shape = "(rotary_dim // 2,)" if ndim == 1 else "(2, rotary_dim // 2)"
        raise CheckpointError(f"rope_freqs has shape {factors.shape}; {shape} is needed.")
    return factors


def _with_sections(keys: Hyperparameters, architecture: str, scheme: FrequencyScheme) -> FrequencyScheme:
    """Return the scheme turned by several position axes, if the file says how many pairs turn with each."""
    section = keys.integers("rope.dimension_sections")
    if not any(section):
        return scheme
    if architecture not in _INTERLEAVED:
        raise CheckpointError(f"rope.dimension_sections isn't implemented for {architecture}.")
    if len(section) not in (3, 4) or any(section[3:]):
        raise CheckpointError(f"rope.dimension_sections is {section}: three numbers of pairs are needed.")
    return MRoPE(section=tuple(section[:3]), interleaved=_INTERLEAVED[architecture], scaling=scheme)


def _sliding(architecture: str, layers: LayerFrequencies) -> RotaryFrequencies | None:
    """Return what sliding layers have, None where it isn't known whether they are scaled."""
    if architecture in _SLIDING_BASE or layers.full.scaling == Default():
        return RotaryFrequencies(Default(), layers.sliding_base, layers.sliding_dim)
    return None


def _of_layer(
    layer_type: str | None, layers: LayerFrequencies, sliding: RotaryFrequencies | None
) -> RotaryFrequencies:
    full, has_sliding = layers.full, layers.has_sliding
    if layer_type not in (None, "full_attention", "sliding_attention"):
        raise CheckpointError(
            f"no layer type {layer_type!r}; GGUF files have full_attention and sliding_attention."
        )
    if layer_type == "full_attention" or (layer_type is None and not has_sliding):
        return full
    if sliding is None or (layer_type == "sliding_attention" and not has_sliding):
        raise CheckpointError(
            "how the sliding layers are rotated isn't in the metadata: read it from the model's config.json, "
            "or pass layer_type='full_attention' for the others."
        )
    if layer_type is None and sliding != full:
        raise CheckpointError(
            "the frequencies differ by layer type: pass layer_type, full_attention or sliding_attention."
        )
    return sliding
