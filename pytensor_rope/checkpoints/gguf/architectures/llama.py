"""Llama, Mistral, SmolLM2 and what else calls itself ``llama``."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.tensors import Layout


def describe(model: ModelFile) -> Description:
    """Describe a Llama. Its query and key rows are stored so that what turns together is neighbours."""
    return model.describe(
        layout=Layout(paired=True),
        epsilon=model.rms_epsilon(),
        feed_forward_bias=model.has("blk.0.ffn_up.bias"),
    )
