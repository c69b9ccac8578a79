"""GPT-NeoX and Pythia."""

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile

_TWENTY_BILLION = (44, 6144)


def describe(model: ModelFile) -> Description:
    """
    Describe a GPT-NeoX.

    The metadata don't say which GELU. That of Pythia and the models made from it is exact, that of
    GPT-NeoX-20B, known by its layers and width, approximate; llama.cpp takes the approximate one for all.
    """
    is_parallel = model.keys.boolean("use_parallel_residual")
    is_approximate = (model.n_layer, model.hidden_size) == _TWENTY_BILLION
    return model.describe(
        epsilon=model.layer_epsilon(),
        norm="layer",
        norm_bias=True,
        residual="parallel" if is_parallel else "sequential",
        activation="gelu_tanh" if is_approximate else "gelu",
        gated=False,
        feed_forward_bias=True,
    )
