"""OLMo 2 and 3."""

from typing import Any

from pytensor_rope.checkpoints.gguf.model import Description, ModelFile
from pytensor_rope.frequencies import UNSCALED

_PERIOD = 4


def describe(model: ModelFile) -> Description:
    """
    Describe an OLMo 2: what attention and feed-forward network add is normalised, and queries and keys.

    OLMo 3 is of the same architecture and has layers that slide. Their frequencies aren't scaled.
    """
    window = model.keys.optional_integer("attention.sliding_window")
    sliding: dict[str, Any] = {}
    if window is not None:
        sliding = {
            "sliding_layers": model.sliding_layers(_PERIOD),
            "sliding_scaling": UNSCALED,
        }
    return model.describe(
        epsilon=model.rms_epsilon(),
        norm_placement="after",
        qk_norm="width",
        sliding_window=window,
        **sliding,
    )
