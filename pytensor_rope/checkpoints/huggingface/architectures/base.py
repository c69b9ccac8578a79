"""What every architecture says about its files, and what their configurations share."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytensor_rope.checkpoints.base import CheckpointError, Weight
from pytensor_rope.checkpoints.huggingface.architectures.harmless import HARMLESS, NEUTRAL
from pytensor_rope.checkpoints.huggingface.architectures.names import TensorNames, weights_of
from pytensor_rope.checkpoints.huggingface.config_keys import ConfigKeys
from pytensor_rope.checkpoints.rope import frequencies_from_config
from pytensor_rope.checks import MOST_TOKENS
from pytensor_rope.config import DecoderConfig
from pytensor_rope.frequencies import MRoPE

Fields = dict[str, Any]

# What transformers calls the activations. The three approximations differ in rounding alone.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
TANH_GELUS = {name: ours for name, ours in ACTIVATIONS.items() if ours == "gelu_tanh"}

# Keys at the top level that describe the rotation of every model.
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")

_SLIDES = {"full_attention": False, "sliding_attention": True}

# More than any model has; a damaged file may promise anything.
_MOST_LAYERS = 10_000
_WIDEST = 2**22


class Architecture(NamedTuple):
    """
    What a model's files hold.

    Attributes
    ----------
    config : DecoderConfig
        Hyper-parameters.
    weights : callable
        Yields where each weight lies, in no more memory than one of them takes. Every tensor that they name
        must be there; several may be parts of one.
    surplus : callable
        Whether a tensor of this name changes nothing.
    duplicates : mapping of str to str
        Tensors that may be there, each with the one that it repeats.
    """

    config: DecoderConfig
    weights: Callable[[], Iterator[Weight]]
    surplus: Callable[[str], bool]
    duplicates: Mapping[str, str]


def read_sizes(
    keys: ConfigKeys, *, own_head_dim: bool = True, grouped: bool = True, inner: str = "intermediate_size"
) -> Fields:
    """
    Read the sizes.

    Parameters
    ----------
    keys : ConfigKeys
        The configuration.
    own_head_dim : bool, optional
        Whether ``head_dim`` may be another than ``hidden_size / num_attention_heads``. Default is True.
    grouped : bool, optional
        Whether there may be fewer heads of keys and values than of queries. Default is True.
    inner : str, optional
        The key of the feed-forward network's width, four times ``hidden_size`` where it is null. Default is
        "intermediate_size".
    """
    sizes = {
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": keys.integer("hidden_size"),
        "n_layer": keys.integer("num_hidden_layers"),
        "n_head": keys.integer("num_attention_heads"),
        "context_length": keys.integer("max_position_embeddings"),
    }
    sizes["intermediate_size"] = keys.integer(inner, 4 * sizes["hidden_size"])
    sizes["n_kv_head"] = _read_kv_heads(keys, sizes["n_head"], grouped)
    sizes["head_dim"] = _read_head_dim(keys, sizes["hidden_size"], sizes["n_head"], own_head_dim)
    for key, size, most in (
        ("num_hidden_layers", sizes["n_layer"], _MOST_LAYERS),
        ("max_position_embeddings", sizes["context_length"], MOST_TOKENS),
        ("vocab_size", sizes["vocab_size"], _WIDEST),
        ("hidden_size", sizes["hidden_size"], _WIDEST),
        (inner, sizes["intermediate_size"], _WIDEST),
        ("head_dim", sizes["head_dim"] * sizes["n_head"], _WIDEST),
    ):
        if size > most:
            raise keys.refuse(key, size, f"at most {most} is plausible, so the file must be damaged")
    return sizes


def read_rotary(
    keys: ConfigKeys,
    sizes: Fields,
    *,
    known: Sequence[str] = ROPE_KEYS,
    partial: bool = False,
    layer: str | None = None,
) -> Fields:
    """
    Read how queries and keys are rotated.

    Parameters
    ----------
    keys : ConfigKeys
        The configuration.
    sizes : dict
        What :func:`read_sizes` has read.
    known : sequence of str, optional
        The keys at the top level that the model knows. Default is those that most models do.
    partial : bool, optional
        Whether the model can rotate a part of each head. Default is False.
    layer : str, optional
        Type of the layers, for models whose layers differ. Default is None.
    """
    config = {key: keys.config[key] for key in ("model_type", *known) if key in keys.config}
    config |= {"head_dim": sizes["head_dim"], "max_position_embeddings": sizes["context_length"]}
    keys.ignore(*known)
    scaling, base, rotary_dim = frequencies_from_config(config, layer_type=layer)
    if rotary_dim != sizes["head_dim"] and not partial:
        raise CheckpointError(
            f"partial_rotary_factor asks for rotating {rotary_dim} of {sizes['head_dim']} dimensions, which "
            f"{keys.model_type} doesn't do. Take it out."
        )
    if isinstance(scaling, MRoPE):
        raise CheckpointError("mrope_section is given, and positions on several axes aren't implemented.")
    whole = rotary_dim == sizes["head_dim"]
    return {"scaling": scaling, "base": base, "rotary_dim": None if whole else rotary_dim}


def read_layer_types(keys: ConfigKeys, n_layer: int) -> list[bool] | None:
    """Return whether each layer slides, None if the configuration doesn't list its layers' types."""
    return keys.one_for_each("layer_types", n_layer, _SLIDES)


def sliding(keys: ConfigKeys, window: int | None, slides: Sequence[bool]) -> Fields:
    """Return the fields for layers of which these slide."""
    if not any(slides):
        return {}
    if window is None:
        raise keys.refuse("sliding_window", None, "layer_types has sliding layers, so a size is needed")
    return {"sliding_window": window, "sliding_layers": None if all(slides) else tuple(slides)}


def read_pattern(keys: ConfigKeys, n_layer: int, *names: str) -> list[bool]:
    """
    Return whether each layer slides, from their types or else from how many of them make a pattern.

    The last layer of a pattern doesn't slide.
    """
    periods = [keys.integer(name) for name in names if keys.has_value(name)]
    keys.ignore(*names)
    slides = read_layer_types(keys, n_layer)
    if slides is not None:
        return slides
    if len(set(periods)) != 1:
        raise CheckpointError(f"{' and '.join(names)} are {periods}: one number of layers is needed.")
    return [(i + 1) % periods[0] != 0 for i in range(n_layer)]


def describe_files(
    keys: ConfigKeys, names: TensorNames, fields: Fields, *, surplus: str | None = None
) -> Architecture:
    """
    Return the architecture, once all that its configuration says has been read.

    Parameters
    ----------
    keys : ConfigKeys
        The configuration.
    names : TensorNames
        Names of the tensors.
    fields : dict
        Of the :class:`~pytensor_rope.DecoderConfig`, all but ``tied``.
    surplus : str, optional
        Regular expression of what tensors that change nothing are called, beside the rotary frequencies.
    """
    tied = keys.switch("tie_word_embeddings")
    for key, neutral in NEUTRAL.items():
        keys.expect(key, *neutral)
    keys.ignore(*HARMLESS)
    keys.finish()
    try:
        config = DecoderConfig(**fields, tied=tied)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"this {keys.model_type} can't be built from its config: {error}") from error
    pattern = re.compile(rf"(?:.*\.)?rotary_emb\.inv_freq{f'|{surplus}' if surplus else ''}")
    return Architecture(
        config=config,
        weights=lambda: weights_of(config, names),
        surplus=lambda name: pattern.fullmatch(name) is not None,
        duplicates={f"{names.head}.weight": f"{names.embedding}.weight"} if tied else {},
    )


def _read_kv_heads(keys: ConfigKeys, n_head: int, grouped: bool) -> int:
    n_kv_head = keys.integer("num_key_value_heads", n_head)
    if not grouped and n_kv_head != n_head:
        raise keys.refuse("num_key_value_heads", n_kv_head, f"{keys.model_type} needs {n_head}")
    if n_head % n_kv_head:
        raise keys.refuse("num_key_value_heads", n_kv_head, f"it has to divide num_attention_heads, {n_head}")
    return n_kv_head


def _read_head_dim(keys: ConfigKeys, hidden_size: int, n_head: int, own_head_dim: bool) -> int:
    if keys.has_value("head_dim") and own_head_dim:
        return keys.integer("head_dim")
    if hidden_size % n_head:
        raise keys.refuse("hidden_size", hidden_size, f"num_attention_heads, {n_head}, has to divide it")
    head_dim = hidden_size // n_head
    if keys.integer("head_dim", head_dim) != head_dim:
        raise keys.refuse("head_dim", keys.config["head_dim"], f"{keys.model_type} needs {head_dim}")
    return head_dim
