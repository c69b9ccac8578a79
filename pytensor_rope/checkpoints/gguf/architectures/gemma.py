"""Gemma."""

import math

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile


def describe(model: ModelFile) -> Description:
    """Describe a Gemma. The one that it adds to the weights of its norms is in the file's."""
    return model.describe(
        epsilon=model.rms_epsilon(),
        tied=True,
        activation="gelu_tanh",
        embedding_scale=math.sqrt(model.hidden_size),
    )
