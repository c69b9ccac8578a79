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
from pytensor_rope.checks import MOST_TOKENS, as_array, whole_number
from pytensor_rope.decoder import Decoder, DecoderState, check_cache_dtype
from pytensor_rope.many_tokens import decode_many
from pytensor_rope.prompts import Prompts, check_prompts, check_rows_of_ids
from pytensor_rope.rows import RowCounter, check_active, check_rows
from pytensor_rope.sampling import Sampler, check_highest
from pytensor_rope.stream_files import load_stream, save_stream
from pytensor_rope.stream_state import StreamState, compiled_once

# Tokens read at once, at most.
_CHUNK = {"c": 512, "numba": 512, "jax": 128, "mlx": 16}
# What compiles anew for each length reads chunks of one length, the last one padded.
_PADDED = ("jax", "mlx")
# Each token decoded in one call has a number drawn for each of the vocabulary.
_MOST_AT_ONCE = 1024


class Stream:
    """
    A decoder with a sink cache, compiled for one backend: made by :meth:`Model.compile`.

    Its functions are compiled when they are first needed, once for all prompt lengths. A stream pickles and
    copies with what it has read, and compiles anew. The rows of a batch are streams of their own: each may be
    at another length, be left out of a step, go back or begin anew, and is what it would be alone.

    Parameters
    ----------
    decoder : Decoder
        The model. Its weights move to the backend.
    cache : SinkCache or sequence of SinkCache
        The cache's layout, one for all layers or one for each.
    backend : {"c", "numba", "jax", "mlx"}
        Where to compute.
    batch : int, optional
        Number of rows to stream side by side. Default is 1.
    dtype : str, optional
        dtype that keys and values are kept in: the decoder's, or a narrower float to save memory, such as
        "float16" for a decoder in float32. Attention is computed in the decoder's. Default is the decoder's.

    Attributes
    ----------
    decoder, cache, backend, dtype
        As given.
    batch : int
        Number of rows.
    position : int
        Number of tokens read so far, by the row that has read most.
    lengths : numpy.ndarray
        Number of tokens read by each row, ``(batch,)``, int64.
    nbytes : int
        Bytes of keys and values.

    Raises
    ------
    ValueError, TypeError
        If ``backend`` is unknown, ``batch`` not a positive integer, ``cache`` not one for each layer, or
        ``dtype`` no float or wider than the decoder's.
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

    Rows of different lengths:

    >>> rows = Stream(stream.decoder, SinkCache(sinks=4, window=12), backend="jax", batch=2)
    >>> rows.prefill([[1, 2, 3], [4, 5, 6, 7, 8]]).shape
    (2, 256)
    >>> rows.lengths
    array([3, 5])
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: SinkCache | Sequence[SinkCache],
        *,
        backend: str,
        batch: int = 1,
        dtype: str | None = None,
    ) -> None:
        if not isinstance(decoder, Decoder):
            raise TypeError(f"decoder must be a Decoder; got a {type(decoder).__name__}.")
        self.decoder = decoder
        self.cache = cache if isinstance(cache, SinkCache) else decoder.layer_caches(cache)
        self.backend = check_backend(backend)
        self.batch = whole_number("batch", batch, least=1)
        self.dtype = check_cache_dtype(dtype, decoder.dtype)
        if self.backend == "numba" and self.dtype == "float16":
            raise NotImplementedError(
                "Numba has no float16 arrays. Keep the cache in float32, or choose the c, jax or mlx backend."
            )
        self._own_state = StreamState(decoder.initial_state(self.cache, batch, self.dtype))
        self._rows = RowCounter(batch)

    @property
    def position(self) -> int:
        """Number of tokens read so far, by the row that has read most."""
        return int(self._rows.lengths.max())

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens read by each row, ``(batch,)``."""
        return self._rows.lengths.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, the same as long as the batch is."""
        config = self.decoder.config
        return sum(
            cache.nbytes(self.batch, config.n_kv_head, config.head_dim, self.dtype)
            for cache in self.decoder.layer_caches(self.cache)
        )

    @property
    def _state(self) -> DecoderState:
        """The shared variables of the compiled functions, holding this stream's arrays."""
        return self._own_state.variables()

    def reset(self, rows: int | Sequence[int] | None = None) -> None:
        """
        Forget everything read: the cache is empty again. Nothing is compiled for it.

        Parameters
        ----------
        rows : int or sequence of int, optional
            The rows to begin anew; the others go on. Default is all.

        Raises
        ------
        ValueError, TypeError
            If a row is named twice or isn't there.
        """
        # What no token has been written to is never seen, so the counter alone empties the cache.
        self._rows.reset(check_rows(rows, self.batch))
        self._put_lengths()

    def rewind(self, n: int | Sequence[int], rows: int | Sequence[int] | None = None) -> None:
        """
        Take back the last tokens: what is read next follows those before.

        The stream is then exactly where it was, whatever was read in between. Until a row has read more
        tokens than the cache has slots, it can go back to any of them; from then on, to ``headroom`` tokens
        behind the furthest it has been. The logits after the remaining tokens are not kept: read the last
        one again for them.

        Parameters
        ----------
        n : int or sequence of int
            Number of tokens to take back, in all of ``rows`` or in each.
        rows : int or sequence of int, optional
            The rows to take them from. Default is all.

        Raises
        ------
        ValueError, TypeError
            If a number is negative, no integer, or more than a row can go back, naming what it can; if a row
            is named twice or isn't there. No row has gone back then.
        """
        self._rows.rewind(check_rows(rows, self.batch), n, self.decoder.layer_caches(self.cache))
        self._put_lengths()

    def drop(self, rows: int | Sequence[int]) -> None:
        """
        Remove rows. Those behind them move up, as in a list.

        The functions are compiled again for the new batch, when they are next needed.

        Parameters
        ----------
        rows : int or sequence of int
            The rows to remove, not all.

        Raises
        ------
        ValueError, TypeError
            If no row would remain, or one is named twice or isn't there.
        """
        dropped = check_rows(rows, self.batch)
        if dropped.size == self.batch:
            raise ValueError(f"rows must leave a row of {self.batch}; got {rows!r}. reset() empties them.")
        rows_left = copy.deepcopy(self._rows)
        rows_left.drop(dropped)
        self._rebatch(rows_left, lambda values: np.delete(values, dropped, axis=0))

    def add(self, n: int = 1) -> range:
        """
        Add empty rows behind the others.

        The functions are compiled again for the new batch, when they are next needed.

        Parameters
        ----------
        n : int, optional
            Number of rows. Default is 1.

        Returns
        -------
        range
            The new rows.

        Raises
        ------
        ValueError, TypeError
            If ``n`` is no positive integer.
        """
        n = whole_number("n", n, least=1)
        first = self.batch
        rows = copy.deepcopy(self._rows)
        rows.add(n)
        self._rebatch(
            rows,
            lambda values: np.concatenate([values, np.zeros((n, *values.shape[1:]), values.dtype)]),
        )
        return range(first, self.batch)

    def prefill(self, token_ids: Prompts, mask: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """
        Read a prompt a row, in chunks of bounded length.

        Parameters
        ----------
        token_ids : array or sequence of arrays
            Shape ``(n,)`` for a batch of 1, or ``(batch, n)``; or one prompt a row, of different lengths, an
            empty one to leave the row out. Integers below the vocabulary size.
        mask : array, optional
            True for a token, False for padding, booleans in the shape of ``token_ids``. Padding may be
            anywhere and of any value. Default is all tokens.

        Returns
        -------
        numpy.ndarray
            Logits after each row's own last token, ``(batch, vocab_size)``; NaN for a row left out.

        Raises
        ------
        ValueError, TypeError
            If a token id is outside the vocabulary or no integer, there is none, or the batch is another.
        """
        ids, counts = check_prompts(token_ids, mask, self.batch, self.decoder.config.vocab_size)
        self._rows.check_room(counts)
        if ids.shape[1] == 1:
            return self._read_one(ids, counts > 0)
        last = np.zeros((self.batch, self.decoder.config.hidden_size), self.decoder.dtype)
        left = counts
        for hidden, read in self._read(ids, counts):
            left = left - read
            ends = (left == 0) & (read > 0)
            last[ends] = hidden[ends, read[ends] - 1]
        return _rows_or_nan(self._head(last), counts > 0)

    def step(self, token: npt.ArrayLike, active: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """
        Read one token a row.

        Parameters
        ----------
        token : int or array
            A token id, or one for each row, ``(batch,)``.
        active : array, optional
            False for a row to leave out, whose token may be anything, ``(batch,)``, bool. Default is all
            rows.

        Returns
        -------
        numpy.ndarray
            Logits after it, ``(batch, vocab_size)``; NaN for a row left out.

        Raises
        ------
        ValueError, TypeError
            As :meth:`prefill`.
        """
        token = as_array("token", token)
        if token.shape != (self.batch,) and not (token.ndim == 0 and self.batch == 1):
            raise ValueError(f"token must be one id a row, shape ({self.batch},); got {token.shape}.")
        reads = check_active(active, self.batch)
        ids = self._check_token_ids(np.where(reads, token, token.dtype.type(0)).reshape(self.batch, 1))
        self._rows.check_room(reads.astype("int64"))
        return self._read_one(ids, reads)

    def generate(
        self,
        prompt_ids: npt.ArrayLike,
        max_tokens: int | None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Collection[int] = (),
        at_once: int = 1,
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
        at_once : int, optional
            Number of tokens to decode in one call of the backend, at most 1024; each number is compiled anew.
            They are the same tokens, but come out together, and all but the last of them have been read by
            then. It is faster where computing a step takes no longer than calling the backend: for small
            models. ``top_k`` and ``top_p`` decode one at a time, and so does MLX, which has no loop. Default
            is 1: each token comes out as it is made.

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
        self._rows.check_room(np.full(1, ids.shape[1]))
        if max_tokens is not None:
            max_tokens = whole_number("max_tokens", max_tokens, least=1)
        sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        at_once = whole_number("at_once", at_once, least=1, most=_MOST_AT_ONCE)
        if sampler.cuts or self.backend == "mlx":
            at_once = 1
        return self._generate(ids, max_tokens, sampler, self._check_stop(stop), at_once)

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
        for hidden, counts in self._read(ids[:, :-1], np.full(1, ids.shape[1] - 1, "int32")):
            count = int(counts[0])
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
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._own_state, twin._rows = self._own_state.fork(), copy.deepcopy(self._rows)
        return twin

    def __copy__(self) -> Self:
        return self.fork()

    def __getstate__(self) -> dict[str, Any]:
        # What is compiled stays behind, and with it the variables that the stream shares with its forks.
        return self.__dict__ | {"_own_state": self._own_state.copies()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arrays, layers = state["_own_state"], range(self.decoder.config.n_layer)
        self._own_state = StreamState(_as_decoder_state(arrays, layers))

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
            If the file is of another model, cache layout, batch or dtype, naming what differs; was written
            by a newer version; is damaged; or is not a stream's.
        ImportError
            If safetensors isn't installed, naming the extra.
        OSError
            If the file can't be read.
        """
        load_stream(self, path)

    def _generate(
        self,
        ids: npt.NDArray[np.int32],
        max_tokens: int | None,
        sampler: Sampler,
        stop: frozenset[int],
        at_once: int,
    ) -> Iterator[int]:
        ends = np.zeros(self.decoder.config.vocab_size, "bool")
        ends[list(stop)] = True
        token, written = sampler(self.prefill(ids)[0]), 1
        yield token
        while token not in stop and (max_tokens is None or written < max_tokens):
            most = at_once if max_tokens is None else min(at_once, max_tokens - written)
            if at_once == 1:
                tokens: Iterable[int] = [sampler(self.step(token)[0])]
            else:
                tokens = self._decode(token, most, sampler, ends, at_once)
            for token in tokens:
                written += 1
                yield token

    def _decode(
        self, token: int, most: int, sampler: Sampler, ends: npt.NDArray[np.bool_], at_once: int
    ) -> Iterator[int]:
        """Read a token and those that follow it, as far as one that ends the text; yield these."""
        self._rows.check_room(np.ones(1, "int64"))
        decode = self._own_state.compiled(
            f"decode_{at_once}",
            lambda: decode_many(self.decoder, self._state, self.cache, at_once, self.backend),
        )
        tokens, highest, n_read = decode(
            np.array([[token]], "int32"),
            np.array(min(most, MOST_TOKENS - self.position), "int32"),
            np.array(sampler.temperature),
            sampler.noise(at_once, ends.size),
            ends,
        )
        self._rows.advance(n_read[None].astype("int64"))
        for chosen, best in zip(tokens[:n_read].tolist(), highest[:n_read].tolist(), strict=True):
            check_highest(best)
            yield chosen

    def _read(
        self, ids: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]:
        """
        Read the first ``counts`` tokens of each row, in chunks.

        Yield each chunk's hidden states, and the number of tokens each row has read in it.
        """
        start = 0
        while start < ids.shape[1]:
            left = np.maximum(counts - start, 0)
            size = min(_CHUNK[self.backend], self._longest_chunk(left))
            read = np.minimum(left, size).astype("int32")
            part = np.ascontiguousarray(ids[:, start : start + size])
            if size > 1 and self.backend in _PADDED:
                part = np.pad(part, ((0, 0), (0, _CHUNK[self.backend] - part.shape[1])))
            # Frequencies that change with every token make chunks of one.
            hidden = self._read_token(part, read) if size == 1 else self._read_chunk(part, read)
            self._rows.advance(read)
            yield hidden, read
            start += size

    def _longest_chunk(self, left: npt.NDArray[np.int32]) -> int:
        """Return how many tokens a row can read as one chunk, as if it read them one by one."""
        lengths = np.unique(self._rows.lengths[left > 0])
        bounds = [self.decoder.longest_chunk(self.cache, int(length)) for length in lengths]
        return min((bound for bound in bounds if bound is not None), default=MOST_TOKENS)

    def _read_one(self, ids: npt.NDArray[np.int32], active: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Read one token in each active row; return the logits."""
        # A single row is never left out.
        logits = self._step(ids) if self.batch == 1 else self._step(ids, active.astype("int32"))
        self._rows.advance(active.astype("int64"))
        return _rows_or_nan(logits, active)

    def _put_lengths(self) -> None:
        self._own_state.set_length(self._rows.lengths.astype("int32"))

    def _rebatch(self, rows: RowCounter, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        """Put other rows into the state, if memory allows, and have its functions compiled again."""
        old, layers = self._own_state.arrays(), range(self.decoder.config.n_layer)
        self._own_state = StreamState(
            _as_decoder_state(
                {name: change(array) for name, array in old.items() if name != "length"}
                | {"length": rows.lengths.astype("int32")},
                layers,
            )
        )
        self._rows, self.batch = rows, len(rows.lengths)

    @compiled_once
    def _step(self) -> CompiledFunction:
        inputs = [pt.tensor("token_ids", shape=(self.batch, 1), dtype="int32")]
        if self.batch > 1:
            inputs.append(pt.tensor("count", shape=(self.batch,), dtype="int32"))
        hidden, new_state = self.decoder.attend(inputs[0], self._state, self.cache, *inputs[1:])
        logits = self.decoder.logits(hidden[:, 0])
        return function(inputs, logits, backend=self.backend, updates=self._updates(new_state))

    @compiled_once
    def _read_chunk(self) -> CompiledFunction:
        return self._reader(_CHUNK[self.backend] if self.backend in _PADDED else None)

    @compiled_once
    def _read_token(self) -> CompiledFunction:
        return self._reader(1)

    def _reader(self, chunk: int | None) -> CompiledFunction:
        """Return a function of ``chunk`` token ids a row, and how many of them are real, to hidden states."""
        ids = pt.tensor("token_ids", shape=(self.batch, chunk), dtype="int32")
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
        return check_rows_of_ids(token_ids, self.batch, self.decoder.config.vocab_size)

    def _check_stop(self, stop: Collection[int]) -> frozenset[int]:
        if isinstance(stop, str) or not isinstance(stop, Iterable):
            raise TypeError(f"stop must be a collection of token ids; got {stop!r}.")
        ids = frozenset(whole_number("A token id in stop", token, least=0) for token in stop)
        if ids and max(ids) >= self.decoder.config.vocab_size:
            raise ValueError(
                f"stop must hold token ids below {self.decoder.config.vocab_size}; got {max(ids)}."
            )
        return ids


def _as_decoder_state(arrays: dict[str, npt.NDArray[Any]], layers: Iterable[int]) -> DecoderState:
    """Return the arrays of a state, by name, as one."""
    layers = list(layers)
    return DecoderState(
        keys=[arrays[f"keys.{i}"] for i in layers],
        values=[arrays[f"values.{i}"] for i in layers],
        length=arrays["length"],
    )


def _rows_or_nan(logits: npt.NDArray[Any], active: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the logits, NaN in the rows that are not active: there are none."""
    if active.all():
        return logits
    return np.where(active[:, None], logits, logits.dtype.type(np.nan))


def _negative_log_likelihood(
    logits: npt.NDArray[Any], targets: Sequence[int] | npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    shifted = logits.astype("float64")
    shifted -= shifted.max(axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(targets)), targets]
    losses: npt.NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=-1)) - chosen
    return losses
