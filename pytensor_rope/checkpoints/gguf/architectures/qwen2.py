"""Qwen 2 and 2.5."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile


def describe(model: ModelFile) -> Description:
    """Describe a Qwen 2."""
    return model.describe(
        epsilon=model.rms_epsilon(),
        head_bias=model.has("output.bias"),
    )
