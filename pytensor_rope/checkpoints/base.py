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
        float32 or float16, C-contiguous, by the names and in the shapes of
        :func:`pytensor_rope.weights.weight_shapes`: matrices as ``(in, out)``, query and key columns in the
        order that ``config.pairing`` rotates.
    tokenizer : Tokenizer or None
        Text to token ids and back; None where the files have none.
    name : str
        What the checkpoint is called.
    generation : GenerationDefaults, optional
        How the checkpoint's makers generate text with it.
    why_no_tokenizer : str, optional
        What the files lack, where there is no tokenizer.
    """

    config: "DecoderConfig"
    weights: dict[str, npt.NDArray[Any]] = field(repr=False)
    tokenizer: "Tokenizer | None"
    name: str
    generation: "GenerationDefaults" = field(default_factory=lambda: GenerationDefaults())
    why_no_tokenizer: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """
    How a checkpoint's makers generate text with it.

    Parameters
    ----------
    eos_ids : tuple of int, optional
        The tokens that end a text. Default is those of the tokenizer.
    temperature : float, optional
        0 for the likeliest token. Default is None, not said.
    top_k : int, optional
        Number of tokens to choose from. Default is None.
    top_p : float, optional
        Probability of the tokens to choose from. Default is None.

    Examples
    --------
    >>> from pytensor_rope.checkpoints.base import GenerationDefaults
    >>> defaults = GenerationDefaults(eos_ids=(2,), temperature=0.7)
    >>> defaults.temperature, defaults.top_k
    (0.7, None)
    """

    eos_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


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
        The shape that the file's tensor must have, matrices as ``(out, in)``.
    transpose : bool, optional
        Whether to store it as ``(in, out)``. Default is False.
    rows : ndarray of int, optional
        Which of the file's rows are ours, in our order: ``ours[j]`` is the file's ``rows[j]``, along the
        first axis. Several weights may be parts of one tensor. Default is None, all of them as they stand.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    transpose: bool = False
    rows: npt.NDArray[np.intp] | None = None

    @property
    def n_row(self) -> int:
        """Number of rows that the file's tensor is read in: 1 for a whole tensor of one axis."""
        return 1 if self.rows is None and len(self.shape) == 1 else self.shape[0]

    def empty(self, dtype: str = "float32") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return an uninitialized array in our layout, and a view of it in the file's."""
        n_row = self.shape[0] if self.rows is None else len(self.rows)
        shape = (n_row, *self.shape[1:])
        array = np.empty(shape[::-1] if self.transpose else shape, dtype)
        return array, array.T if self.transpose else array


Metadata = dict[str, Any]
