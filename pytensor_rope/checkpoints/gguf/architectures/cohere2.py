"""Command R7B and Command A: Cohere's second."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile

_PERIOD = 4


def describe(model: ModelFile) -> Description:
    """Describe a Cohere 2: three layers slide and are rotated, the fourth sees everything and isn't."""
    sliding = model.sliding_layers(_PERIOD)
    return model.describe(
        epsilon=model.layer_epsilon(),
        tied=True,
        pairing="adjacent",
        norm="layer",
        residual="parallel",
        shared_norm=True,
        logit_scale=model.keys.positive("logit_scale"),
        sliding_window=model.keys.integer("attention.sliding_window"),
        sliding_layers=sliding,
        rotated_layers=sliding,
    )
