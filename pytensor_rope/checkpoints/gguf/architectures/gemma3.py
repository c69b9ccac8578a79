"""Gemma 3."""

import math
from typing import Any

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.frequencies import UNSCALED

_PERIOD = 6
_LAYERS_OF_27B = 62


def describe(model: ModelFile) -> Description:
    """
    Describe a Gemma 3: five layers slide, with frequencies of their own, the sixth sees everything.

    The metadata don't have the factor on the scores. It is ``1 / sqrt(head_dim)`` but for the largest model.
    """
    keys = model.keys
    width = model.hidden_size // model.n_head if model.n_layer == _LAYERS_OF_27B else model.head_dim
    frequencies = model.frequencies()
    window = keys.optional_integer("attention.sliding_window")
    sliding: dict[str, Any] = {}
    if window is not None:
        sliding = {
            "sliding_layers": model.sliding_layers(_PERIOD),
            "sliding_base": frequencies.sliding_base,
            "sliding_scaling": UNSCALED,
        }
    return model.describe(
        frequencies=frequencies,
        epsilon=model.rms_epsilon(),
        norm_placement="both",
        activation="gelu_tanh",
        qk_norm="head",
        embedding_scale=math.sqrt(model.hidden_size),
        attention_scale=1 / math.sqrt(width),
        logit_softcap=keys.real("final_logit_softcapping", 0.0) or None,
        sliding_window=window,
        **sliding,
    )
