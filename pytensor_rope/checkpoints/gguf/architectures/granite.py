"""Granite."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.checkpoints.gguf.tensors import Layout


def describe(model: ModelFile) -> Description:
    """Describe a Granite: a Llama with four factors, of which the logits are divided by theirs."""
    keys = model.keys
    is_rotated = keys.boolean("rope.scaling.finetuned", True)
    return model.describe(
        layout=Layout(paired=True),
        epsilon=model.rms_epsilon(),
        feed_forward_bias=model.has("blk.0.ffn_up.bias"),
        rotated_layers=None if is_rotated else [False for _ in model.layers()],
        attention_scale=keys.real("attention.scale", 0.0) or None,
        embedding_scale=keys.real("embedding_scale", 0.0) or 1.0,
        residual_scale=keys.real("residual_scale", 0.0) or 1.0,
        logit_scale=1 / keys.positive("logit_scale"),
    )
