"""ChatGLM and the GLM-4 of 2024."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.tensors import Layout


def describe(model: ModelFile) -> Description:
    """Describe a GLM."""
    return model.describe(
        layout=Layout(fused_up=True),
        epsilon=model.rms_epsilon(),
        pairing="adjacent",
    )
