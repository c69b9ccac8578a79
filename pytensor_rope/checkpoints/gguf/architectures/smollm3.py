"""SmolLM3."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.tensors import Layout

_UNROTATED_EVERY = 4


def describe(model: ModelFile) -> Description:
    """Describe a SmolLM3: a Llama of which every fourth layer isn't rotated."""
    return model.describe(
        layout=Layout(paired=True),
        epsilon=model.rms_epsilon(),
        feed_forward_bias=model.has("blk.0.ffn_up.bias"),
        rotated_layers=[(i + 1) % _UNROTATED_EVERY != 0 for i in model.layers()],
    )
