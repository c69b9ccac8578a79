"""What reading a checkpoint gives, and what every architecture says about its files."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytensor_rope.frequencies import FrequencyScheme

if TYPE_CHECKING:
    from pytensor_rope.config import DecoderConfig
    from pytensor_rope.tokenizer import Tokenizer


class CheckpointError(ValueError):
    """
    A checkpoint that can't be read, or that asks for something not implemented.

    Examples
    --------
    >>> from pytensor_rope.checkpoints import load_checkpoint
    >>> load_checkpoint("missing.gguf")
    Traceback (most recent call last):
    ...
    pytensor_rope.checkpoints.base.CheckpointError: No such file: missing.gguf
    """


class RotaryFrequencies(NamedTuple):
    """
    What gives a model its inverse frequencies.

    Attributes
    ----------
    scaling : FrequencyScheme
        How they are computed.
    base : float
        Base of the geometric sequence.
    rotary_dim : int
        Number of rotated dimensions.
    """

    scaling: FrequencyScheme
    base: float
    rotary_dim: int


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """
    A decoder read from files.

    Parameters
    ----------
    config : DecoderConfig
        Hyper-parameters.
    weights : dict of str to ndarray
        float32, C-contiguous, matrices as ``(in, out)``: ``embedding`` (vocab, hidden);
        ``layers.{i}.attention_norm`` and ``layers.{i}.feed_forward_norm`` (hidden,);
        ``layers.{i}.query`` (hidden, n_head * head_dim); ``layers.{i}.key`` and
        ``layers.{i}.value`` (hidden, n_kv_head * head_dim); ``layers.{i}.output``
        (n_head * head_dim, hidden); ``layers.{i}.gate`` and ``layers.{i}.up``
        (hidden, intermediate); ``layers.{i}.down`` (intermediate, hidden); ``final_norm``
        (hidden,); and ``head`` (hidden, vocab) unless ``config.tied``. Query and key columns are
        in the order that ``config.pairing`` rotates.
    tokenizer : Tokenizer
        Text to token ids and back.
    name : str
        What the checkpoint is called.
    """

    config: "DecoderConfig"
    weights: dict[str, npt.NDArray[np.float32]] = field(repr=False)
    tokenizer: "Tokenizer"
    name: str


@dataclass(frozen=True, kw_only=True)
class Weight:
    """
    Where one weight lies in a file and how it becomes ours.

    Parameters
    ----------
    name : str
        Our name.
    source : str
        The file's name for the tensor.
    shape : tuple of int
        The shape that the file must have, matrices as ``(out, in)``.
    transpose : bool, optional
        Whether to store it as ``(in, out)``. Default is False.
    rows : ndarray of int, optional
        Shape ``(out,)``: ``rows[j]`` is the place of the file's row ``j`` among ours. Default is
        None, the same order.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    transpose: bool = False
    rows: npt.NDArray[np.intp] | None = None

    def empty(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return an uninitialized array in our layout, and a view of it in the file's."""
        shape = self.shape[::-1] if self.transpose else self.shape
        array = np.empty(shape, dtype=np.float32)
        return array, array.T if self.transpose else array


Metadata = dict[str, Any]
