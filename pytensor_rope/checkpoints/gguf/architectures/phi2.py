"""Phi 1, 1.5 and 2."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile


def describe(model: ModelFile) -> Description:
    """Describe a Phi 2: attention and feed-forward network share a LayerNorm, and everything has biases."""
    return model.describe(
        epsilon=model.layer_epsilon(),
        tied=False,
        norm="layer",
        norm_bias=True,
        residual="parallel",
        shared_norm=True,
        activation="gelu_tanh",
        gated=False,
        qkv_bias=True,
        output_bias=True,
        feed_forward_bias=True,
        head_bias=True,
    )
