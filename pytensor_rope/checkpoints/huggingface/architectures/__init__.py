"""
Each family of architectures: what its ``config.json`` says, and which tensors its files hold.

A configuration is read in full. A key that would change what the model computes and isn't implemented is
refused, as is one that nobody knows: what is left out silently still writes fluent text, only a worse one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checkpoints.huggingface.architectures import (
    cohere,
    gemma,
    glm,
    gpt_neox,
    gptj,
    granite,
    llama,
    mistral,
    olmo,
    phi,
    phi3,
    qwen,
    smollm3,
    stablelm,
    starcoder2,
)
from pytensor_rope.checkpoints.huggingface.architectures.base import Architecture

__all__ = ["Architecture", "describe"]

# By model_type: what transformers calls the model with a language model's head, and how to describe it.
_FAMILIES: dict[str, tuple[str, Callable[[Mapping[str, Any]], Architecture]]] = {
    "cohere": ("CohereForCausalLM", cohere.cohere),
    "cohere2": ("Cohere2ForCausalLM", cohere.cohere2),
    "gemma": ("GemmaForCausalLM", gemma.gemma),
    "gemma2": ("Gemma2ForCausalLM", gemma.gemma2),
    "gemma3_text": ("Gemma3ForCausalLM", gemma.gemma3_text),
    "glm": ("GlmForCausalLM", glm.glm),
    "glm4": ("Glm4ForCausalLM", glm.glm4),
    "gpt_neox": ("GPTNeoXForCausalLM", gpt_neox.gpt_neox),
    "gptj": ("GPTJForCausalLM", gptj.gptj),
    "granite": ("GraniteForCausalLM", granite.granite),
    "llama": ("LlamaForCausalLM", llama.llama),
    "ministral": ("MinistralForCausalLM", mistral.ministral),
    "mistral": ("MistralForCausalLM", mistral.mistral),
    "olmo2": ("Olmo2ForCausalLM", olmo.olmo2),
    "olmo3": ("Olmo3ForCausalLM", olmo.olmo3),
    "phi": ("PhiForCausalLM", phi.phi),
    "phi3": ("Phi3ForCausalLM", phi3.phi3),
    "qwen2": ("Qwen2ForCausalLM", qwen.qwen2),
    "qwen3": ("Qwen3ForCausalLM", qwen.qwen3),
    "smollm3": ("SmolLM3ForCausalLM", smollm3.smollm3),
    "stablelm": ("StableLmForCausalLM", stablelm.stablelm),
    "starcoder2": ("Starcoder2ForCausalLM", starcoder2.starcoder2),
}


def describe(config: Mapping[str, Any]) -> Architecture:
    """
    Read a ``config.json`` in full.

    Parameters
    ----------
    config : mapping
        The parsed file, in the keys of transformers 4 or 5.

    Returns
    -------
    Architecture

    Raises
    ------
    CheckpointError
        If the architecture or something that the configuration asks for isn't implemented, or if a key is
        missing, wrong or unknown. It names the key.

    References
    ----------
    .. [1] transformers 5.24.0, configuration and code of each model.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json has to hold an object with keys.")
    model_type = config.get("model_type")
    known = f"implemented are {', '.join(sorted(_FAMILIES))}"
    if config.get("text_config") is not None:
        raise CheckpointError(
            f"the configuration has text_config, so this {model_type!r} reads more than text, which isn't "
            f"implemented. Give the files of a language model; {known}."
        )
    if model_type is None:
        raise CheckpointError(f"model_type is missing. Add it; {known}.")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise CheckpointError(f"model_type is {model_type!r}: {known}.")
    class_name, family = _FAMILIES[model_type]
    _check_class(config.get("architectures"), class_name)
    return family(config)


def _check_class(named: object, class_name: str) -> None:
    """Refuse what has another head than a language model's."""
    if named in (None, [], [class_name]):
        return
    raise CheckpointError(
        f"architectures is {named!r}: only the language model, {class_name!r}, is implemented."
    )
