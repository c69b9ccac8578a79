"""Phi 3, 3.5 and 4."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.tensors import Layout


def describe(model: ModelFile) -> Description:
    """
    Describe a Phi 3.

    All its layers slide, if the metadata have a window: so transformers has it, while llama.cpp reads the
    window and drops it.
    """
    return model.describe(
        layout=Layout(fused_up=True),
        epsilon=model.rms_epsilon(),
        head_bias=model.has("output.bias"),
        sliding_window=model.keys.optional_integer("attention.sliding_window"),
    )
