"""Command R and Aya: Cohere's first."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile


def describe(model: ModelFile) -> Description:
    """Describe a Command R. The large one normalises queries and keys, each head with its own weights."""
    return model.describe(
        epsilon=model.layer_epsilon(),
        tied=True,
        pairing="adjacent",
        norm="layer",
        residual="parallel",
        shared_norm=True,
        qk_norm="heads" if model.has("blk.0.attn_q_norm.weight") else None,
        logit_scale=model.keys.real("logit_scale", 0.0) or 1.0,
    )
