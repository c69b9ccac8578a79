"""Qwen 3."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile


def describe(model: ModelFile) -> Description:
    """Describe a Qwen 3, which normalises queries and keys."""
    return model.describe(epsilon=model.rms_epsilon(), qk_norm="head")
