"""Gemma 2."""

import math

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile

_PERIOD = 2
_LAYERS_OF_27B = 46


def describe(model: ModelFile) -> Description:
    """
    Describe a Gemma 2: every other layer slides, and scores and logits are capped.

    The metadata don't have the factor on the scores. It is ``1 / sqrt(head_dim)`` but for the largest model.
    """
    keys = model.keys
    width = model.hidden_size // model.n_head if model.n_layer == _LAYERS_OF_27B else model.head_dim
    return model.describe(
        epsilon=model.rms_epsilon(),
        tied=True,
        norm_placement="both",
        activation="gelu_tanh",
        embedding_scale=math.sqrt(model.hidden_size),
        attention_scale=1 / math.sqrt(width),
        attention_softcap=keys.real("attn_logit_softcapping", 50.0),
        logit_softcap=keys.real("final_logit_softcapping", 30.0),
        sliding_window=keys.integer("attention.sliding_window", 4096),
        sliding_layers=model.sliding_layers(_PERIOD),
    )
