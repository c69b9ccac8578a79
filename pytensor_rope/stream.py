"""A decoder compiled for one backend, which reads and writes tokens without end in constant memory."""

import copy
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt

from pytensor_rope.backends import CompiledFunction, check_backend, function
from pytensor_rope.cache import SinkCache
from pytensor_rope.checks import whole_number
from pytensor_rope.decoder import Decoder, DecoderState, check_cache_dtype
from pytensor_rope.sampling import Sampler
from pytensor_rope.stream_files import load_stream, save_stream
from pytensor_rope.stream_state import StreamState, compiled_once

# Tokens read at once, at most. MLX multiplies matrices slowly on a CPU, so padding would cost there.
_CHUNK = {"c": 64, "numba": 64, "jax": 64, "mlx": 16}

# The counter of tokens is an int32.
_MOST_TOKENS = 2**31 - 1


class Stream:
    """
    A decoder with a sink cache, compiled for one backend: made by :meth:`Model.compile`.

    Its functions are compiled when they are first needed, once for all prompt lengths.

    Parameters
    ----------
    decoder : Decoder
        The model. Its weights move to the backend.
    cache : SinkCache
        The cache's layout.
    backend : {"c", "numba", "jax", "mlx"}
        Where to compute.
    batch : int, optional
        Number of rows to stream side by side. Default is 1.
    dtype : str, optional
        dtype that keys and values are kept in: the decoder's, or a narrower float to save memory, such as
        "float16" for a decoder in float32. Attention is computed in the decoder's. Default is the decoder's.

    Attributes
    ----------
    decoder, cache, backend, batch, dtype
        As given.
    position : int
        Number of tokens read so far.
    nbytes : int
        Bytes of keys and values.

    Raises
    ------
    ValueError, TypeError
        If ``backend`` is unknown, ``batch`` not a positive integer, or ``dtype`` no float or wider than the
        decoder's.
    ImportError
        If the backend isn't installed.
    NotImplementedError
        If ``dtype`` is float16 on Numba, which has no such arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_rope import Decoder, DecoderConfig, SinkCache, Stream
    >>> config = DecoderConfig(
    ...     vocab_size=256,
    ...     hidden_size=32,
    ...     intermediate_size=64,
    ...     n_layer=2,
    ...     n_head=4,
    ...     n_kv_head=2,
    ...     head_dim=8,
    ...     context_length=128,
    ... )
    >>> stream = Stream(Decoder(config=config, seed=0), SinkCache(sinks=4, window=12), backend="jax")
    >>> len(list(stream.generate([1, 2, 3], max_tokens=40, temperature=1.0, seed=0)))
    40
    >>> stream.position, stream.nbytes
    (42, 4096)
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: SinkCache,
        *,
        backend: str,
        batch: int = 1,
        dtype: str | None = None,
    ) -> None:
        self.decoder = decoder
        self.cache = cache
        self.backend = check_backend(backend)
        self.batch = whole_number("batch", batch, least=1)
        self.dtype = check_cache_dtype(dtype, decoder.dtype)
        if self.backend == "numba" and self.dtype == "float16":
            raise NotImplementedError(
                "Numba has no float16 arrays. Keep the cache in float32, or choose the c, jax or mlx backend."
            )
        self.position = 0
        self._own_state = StreamState(decoder.initial_state(cache, batch, self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, the same for the life of the stream."""
        config = self.decoder.config
        heads = self.batch * config.n_layer * config.n_kv_head
        itemsize = np.dtype(self.dtype).itemsize
        return 2 * heads * self.cache.capacity * config.head_dim * itemsize

    @property
    def _state(self) -> DecoderState:
        """The shared variables of the compiled functions, holding this stream's arrays."""
        return self._own_state.variables()

    def reset(self) -> None:
        """Forget everything read: the cache is empty again."""
        # What no token has been written to is never seen, so the counter alone empties the cache.
        self._state.length.set_value(np.zeros(self.batch, "int32"))
        self.position = 0

    def prefill(self, token_ids: npt.ArrayLike) -> npt.NDArray[Any]:
        """
        Read a prompt, in chunks of bounded length.

        Parameters
        ----------
        token_ids : array
            Shape ``(n,)`` for a batch of 1, or ``(batch, n)``; integers below the vocabulary size.

        Returns
        -------
        numpy.ndarray
            Logits after the last token, ``(batch, vocab_size)``.

        Raises
        ------
        ValueError, TypeError
            If a token id is outside the vocabulary or no integer, the prompt is empty, or the batch
            is another.
        """
        ids = self._check_token_ids(token_ids)
        self._check_room(ids.shape[1])
        if ids.shape[1] == 1:
            return self.step(ids[:, 0])
        for hidden, count in self._read(ids):
            last = hidden[:, count - 1]
        logits: npt.NDArray[Any] = self._head(last)
        return logits

    def step(self, token: npt.ArrayLike) -> npt.NDArray[Any]:
        """
        Read one token a row.

        Parameters
        ----------
        token : int or array
            A token id, or one for each row, ``(batch,)``.

        Returns
        -------
        numpy.ndarray
            Logits after it, ``(batch, vocab_size)``.

        Raises
        ------
        ValueError, TypeError
            As :meth:`prefill`.
        """
        token = np.asarray(token)
        if token.shape != (self.batch,) and not (token.ndim == 0 and self.batch == 1):
            raise ValueError(f"token must be one id a row, shape ({self.batch},); got {token.shape}.")
        ids = self._check_token_ids(token.reshape(self.batch, 1))
        self._check_room(1)
        logits: npt.NDArray[Any] = self._step(ids)
        self.position += 1
        return logits

    def generate(
        self,
        prompt_ids: npt.ArrayLike,
        max_tokens: int | None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """
        Read a prompt after what was read before, and write on from it.

        A token is read when the next one is asked for, so the last one written is not in the cache yet:
        to go on from there, begin the next prompt with it. Don't read anything else into the stream, load
        or reset it while its text is still being taken; saving and forking it does no harm.

        Parameters
        ----------
        prompt_ids : array
            Shape ``(n,)``; integers below the vocabulary size.
        max_tokens : int or None
            Number of tokens to write; endless when None.
        temperature : float, optional
            0 takes the likeliest token. Default is 0.
        top_k : int, optional
            Draw from the k likeliest tokens only. Default is from all.
        top_p : float, optional
            Draw from the likeliest tokens that together have this probability. Default is from all.
        seed : int, optional
            Seed of the draws. Default is a fresh one.
        stop : collection of int, optional
            Token ids that end the text; the one that does is the last written. Default is none.

        Yields
        ------
        int
            Token ids, as they are made.

        Raises
        ------
        ValueError, TypeError
            As :meth:`prefill`, and if another argument is out of range; at once, not at the first token.
        """
        if self.batch != 1:
            raise ValueError(
                f"generate writes one row, but this stream has batch={self.batch}: use prefill and step."
            )
        ids = self._check_token_ids(prompt_ids)
        self._check_room(ids.shape[1])
        if max_tokens is not None:
            max_tokens = whole_number("max_tokens", max_tokens, least=1)
        sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return self._generate(ids, max_tokens, sampler, self._check_stop(stop))

    def score(
        self, token_ids: npt.ArrayLike, *, progress: Callable[[int], object] | None = None
    ) -> npt.NDArray[np.float64]:
        """
        Return how surprising each token is after those before it, from an empty cache.

        Parameters
        ----------
        token_ids : array
            Shape ``(n,)``, at least 2; integers below the vocabulary size.
        progress : callable, optional
            Called with the number of tokens read, after each chunk.

        Returns
        -------
        numpy.ndarray
            Negative log-likelihood of each next token, in nats, ``(n - 1,)``, float64.

        Raises
        ------
        ValueError, TypeError
            As :meth:`prefill`, and if there are fewer than 2 tokens.
        """
        if self.batch != 1:
            raise ValueError(f"score reads one row, but this stream has batch={self.batch}.")
        ids = self._check_token_ids(token_ids)
        if ids.shape[1] < 2:
            raise ValueError("token_ids must have at least 2 tokens to score; got 1.")
        self.reset()
        losses = np.empty(ids.shape[1] - 1)
        read = 0
        for hidden, count in self._read(ids[:, :-1]):
            targets = ids[0, read + 1 : read + count + 1]
            losses[read : read + count] = _negative_log_likelihood(self._head(hidden[0])[:count], targets)
            read += count
            if progress is not None:
                progress(read)
        return losses

    def fork(self) -> Self:
        """
        Return a second stream that has read what this one has; either goes on without disturbing the other.

        Its cache is a copy; weights and compiled functions are shared, so that a fork costs a copy of
        ``nbytes`` bytes and no compilation. Streams that share functions may be used from several threads,
        one call at a time.

        Returns
        -------
        Stream
            With the same decoder, cache layout, backend and batch.

        Examples
        --------
        Two answers to one long prompt, which is read once:

        >>> from pytensor_rope import Decoder, DecoderConfig, SinkCache, Stream
        >>> config = DecoderConfig(
        ...     vocab_size=256,
        ...     hidden_size=32,
        ...     intermediate_size=64,
        ...     n_layer=2,
        ...     n_head=4,
        ...     n_kv_head=2,
        ...     head_dim=8,
        ...     context_length=128,
        ... )
        >>> stream = Stream(Decoder(config=config, seed=0), SinkCache(sinks=4, window=12), backend="jax")
        >>> logits = [stream.step(token) for token in (1, 2, 3)]
        >>> other = stream.fork()
        >>> logits = other.step(4)
        >>> stream.position, other.position
        (3, 4)
        """
        twin = copy.copy(self)
        twin._own_state = self._own_state.fork()
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the stream's cache and position to a file, from which :meth:`load` goes on exactly.

        The file is in the safetensors format and says which model and cache layout it belongs to. It is
        replaced in one step: whatever happens, ``path`` holds the old file or the new one, whole. A save
        that is killed may leave a file named ``.{name}.*.partial`` beside it, which the next save to the
        same path removes.

        Saving changes nothing, also in the middle of a text. There, the token that :meth:`generate` gave
        last has not been read yet: keep it, and begin the prompt with it after loading. What a sampler
        would draw next is not part of the stream.

        Parameters
        ----------
        path : str or path
            The file to write; its folder must exist.

        Raises
        ------
        ImportError
            If safetensors isn't installed, naming the extra.
        OSError
            If the file can't be written.

        Examples
        --------
        >>> import tempfile
        >>> from pytensor_rope import Decoder, DecoderConfig, SinkCache, Stream
        >>> config = DecoderConfig(
        ...     vocab_size=256,
        ...     hidden_size=32,
        ...     intermediate_size=64,
        ...     n_layer=2,
        ...     n_head=4,
        ...     n_kv_head=2,
        ...     head_dim=8,
        ...     context_length=128,
        ... )
        >>> stream = Stream(Decoder(config=config, seed=0), SinkCache(sinks=4, window=12), backend="jax")
        >>> logits = [stream.step(token) for token in (1, 2, 3)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream.save(f"{folder}/text.safetensors")
        ...     first = stream.step(4)
        ...     stream.load(f"{folder}/text.safetensors")
        ...     again = stream.step(4)
        >>> (again == first).all()
        np.True_
        """
        save_stream(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """
        Go on from a file that :meth:`save` wrote, on this backend or another.

        What was read before is forgotten. After an error the stream is as it was.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        ValueError
            If the file is of another model, cache layout, batch or dtype, naming what differs; written by
            a newer version; damaged; or no such file at all.
        ImportError
            If safetensors isn't installed, naming the extra.
        OSError
            If the file can't be read.
        """
        load_stream(self, path)

    def _longest(self) -> npt.NDArray[np.int32]:
        """Return the most tokens that each row has read since it was empty, ``(batch,)``."""
        return np.full(self.batch, self.position, "int32")

    def _count_from(self, length: npt.NDArray[np.int32], longest: npt.NDArray[np.int32]) -> None:
        """Go on counting after each row's ``length`` tokens, and ``longest`` since it was empty."""
        self.position = int(length.max())

    def _generate(
        self, ids: npt.NDArray[np.int32], max_tokens: int | None, sampler: Sampler, stop: frozenset[int]
    ) -> Iterator[int]:
        token = sampler(self.prefill(ids)[0])
        written = 1
        yield token
        while token not in stop and (max_tokens is None or written < max_tokens):
            token = sampler(self.step(token)[0])
            written += 1
            yield token

    def _read(self, ids: npt.NDArray[np.int32]) -> Iterator[tuple[npt.NDArray[Any], int]]:
        """Read the tokens in chunks of one length, the last one padded; yield hidden states and counts."""
        chunk = _CHUNK[self.backend]
        for start in range(0, ids.shape[1], chunk):
            part = ids[:, start : start + chunk]
            count = part.shape[1]
            padded = np.zeros((self.batch, chunk), "int32")
            padded[:, :count] = part
            hidden = self._read_chunk(padded, np.full(self.batch, count, "int32"))
            self.position += count
            yield hidden, count

    @compiled_once
    def _step(self) -> CompiledFunction:
        ids = pt.tensor("token_ids", shape=(self.batch, 1), dtype="int32")
        hidden, new_state = self.decoder.attend(ids, self._state, self.cache)
        logits = self.decoder.logits(hidden[:, 0])
        return function([ids], logits, backend=self.backend, updates=self._updates(new_state))

    @compiled_once
    def _read_chunk(self) -> CompiledFunction:
        ids = pt.tensor("token_ids", shape=(self.batch, _CHUNK[self.backend]), dtype="int32")
        count = pt.tensor("count", shape=(self.batch,), dtype="int32")
        hidden, new_state = self.decoder.attend(ids, self._state, self.cache, count)
        return function([ids, count], hidden, backend=self.backend, updates=self._updates(new_state))

    @compiled_once
    def _head(self) -> CompiledFunction:
        hidden = pt.tensor("hidden", shape=(None, self.decoder.config.hidden_size), dtype=self.decoder.dtype)
        return function([hidden], self.decoder.logits(hidden), backend=self.backend)

    def _updates(self, new: DecoderState) -> list[tuple[Any, Any]]:
        old = self._state
        return list(
            zip([*old.keys, *old.values, old.length], [*new.keys, *new.values, new.length], strict=True)
        )

    def _check_token_ids(self, token_ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        ids = check_token_ids(token_ids, self.decoder.config.vocab_size)
        if ids.ndim == 1 and self.batch == 1:
            ids = ids[None]
        if ids.ndim != 2 or ids.shape[0] != self.batch:
            raise ValueError(
                f"token_ids must have shape ({self.batch}, n) for this stream's batch; got {ids.shape}."
            )
        return ids

    def _check_stop(self, stop: Collection[int]) -> frozenset[int]:
        if isinstance(stop, str) or not isinstance(stop, Iterable):
            raise TypeError(f"stop must be a collection of token ids; got {stop!r}.")
        ids = frozenset(whole_number("A token id in stop", token, least=0) for token in stop)
        if ids and max(ids) >= self.decoder.config.vocab_size:
            raise ValueError(
                f"stop must hold token ids below {self.decoder.config.vocab_size}; got {max(ids)}."
            )
        return ids

    def _check_room(self, n: int) -> None:
        if self.position + n > _MOST_TOKENS:
            raise ValueError(
                f"A stream ends at {_MOST_TOKENS} tokens, and {self.position} have been read. reset() it."
            )


def check_token_ids(token_ids: npt.ArrayLike, vocab_size: int) -> npt.NDArray[np.int32]:
    """Return the token ids as int32, refusing what no decoder of ``vocab_size`` can read."""
    ids = np.asarray(token_ids)
    if ids.size == 0:
        raise ValueError("token_ids is empty: give at least one token to read.")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"token_ids must be integers; got {ids.dtype}.")
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        raise ValueError(
            f"token_ids must be from 0 to {vocab_size - 1}, the vocabulary; got {ids[outside].flat[0]}."
        )
    return ids.astype("int32")


def _negative_log_likelihood(
    logits: npt.NDArray[Any], targets: Sequence[int] | npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    shifted = logits.astype("float64")
    shifted -= shifted.max(axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(targets)), targets]
    losses: npt.NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=-1)) - chosen
    return losses
