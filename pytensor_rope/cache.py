"""The attention-sink key/value cache: layout, positions, attention and update."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor import TensorLike

from pytensor_rope.attention import sink_attention
from pytensor_rope.base import FLOAT_DTYPES, Tensor, axis_indices, float_tensor, named_tensor, pinned
from pytensor_rope.checks import finite_number, token_counts, whole_number
from pytensor_rope.layout import SinkLayout, remap_positions
from pytensor_rope.packing import Packing
from pytensor_rope.rotary import RotaryEmbedding
from pytensor_rope.write_tokens import WriteTokens


class SinkCacheState(NamedTuple):
    """
    What a :class:`SinkCache` holds: NumPy arrays, or variables of the same types.

    Attributes
    ----------
    keys, values
        Shape ``(batch, n_kv_head, capacity, head_dim)``. The keys are rotated where the rotation
        ``caches_rotated_keys``, and otherwise kept as they were.
    length
        Number of tokens seen by each row, ``(batch,)``, int32.
    """

    keys: Any
    values: Any
    length: Any


class SinkAngles(NamedTuple):
    """
    The cosines and sines that attention over a :class:`SinkCache` rotates by.

    Attributes
    ----------
    query, sink_query : tuple of tensor
        Of queries as they see the window, and as they see the sinks.
    key : tuple of tensor
        Of the chunk's keys.
    cached : tuple of tensor or None
        Of the cached keys, where they are kept as they were before their rotation.
    """

    query: tuple[Tensor, Tensor]
    sink_query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    cached: tuple[Tensor, Tensor] | None


class SinkCache(SinkLayout):
    r"""
    A key/value cache that keeps the first tokens and the last ones.

    The first ``sinks`` tokens stay for good; of the later ones the last ``window`` are visible, the
    current token among them. Memory is constant however long the stream. With ``positions="cache"``, a
    model sees keys at the distances they would have if the visible tokens were all there is, as in
    StreamingLLM, and yet each key is rotated once, when it is written: the query is rotated twice, to
    its own position :math:`i` for the window and to :math:`\min(i, S + W - 1)` for the sinks.

    Where the frequencies change with the length (:class:`~pytensor_rope.frequencies.DynamicNTK`,
    :class:`~pytensor_rope.frequencies.LongRoPE`), and where keys also decay with their position
    (:class:`~pytensor_rope.frequencies.XPos`), the cache keeps keys as they were and rotates them when it
    reads, by the frequencies of the length it shows: all of it up to :math:`S + W` tokens, and with
    ``positions="absolute"`` all tokens seen.

    Position :math:`p < S` is kept in slot p, later ones in slot :math:`S + (p - S) \bmod R` of a ring of
    :math:`R = W + \text{headroom}`. A chunk of any length attends to the cache as it was before the chunk
    and to itself, and is written afterwards, so any chunking gives what one token at a time gives. The one
    exception is a chunk within which the frequencies change: all of it is read by those of its last token
    (:meth:`longest_chunk` says how long it may be; a :class:`~pytensor_rope.Stream` heeds it).

    Parameters
    ----------
    sinks : int
        Number S of first tokens to keep. 0 keeps none.
    window : int
        Number W of last tokens to see, the current one included.
    headroom : int, optional
        Number of tokens to keep beyond the window, unseen, so that the last ``headroom`` tokens can be taken
        back (:meth:`rewind`). Default is 0; with ``positions="wrapped"`` it is the window.
    positions : {"cache", "absolute", "wrapped"}, optional
        The positions that rotate queries and keys. "cache": as in StreamingLLM. "absolute": the true ones,
        so that the sinks recede without bound (Mistral's sliding window with the sinks kept). "wrapped":
        ExecuTorch's, those of a ring of 2 W slots (:func:`remap_positions`), where a distance is wrong
        whenever the window lies across the ring's end. Default is "cache".

    Raises
    ------
    ValueError
        If ``sinks`` or ``headroom`` is negative, ``window`` below 1, ``positions`` unknown, or ``headroom``
        more than the window with ``positions="wrapped"``.
    TypeError
        If a number is no integer.

    Notes
    -----
    A stream counts its tokens in int32, so it ends before 2**31 tokens.

    Caches of the same arguments are equal.

    References
    ----------
    .. [1] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453.
    .. [2] "Enable infinite generation with RoPE position remapping for attention sink",
       https://github.com/pytorch/executorch/pull/19011.

    Examples
    --------
    A decoding step inside a graph of one's own, state in and state out:

    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import RotaryEmbedding, SinkCache, SinkCacheState
    >>> cache = SinkCache(sinks=4, window=60)
    >>> initial = cache.initial_state(batch=1, n_kv_head=2, head_dim=16)
    >>> initial.keys.shape
    (1, 2, 64, 16)
    >>> state = SinkCacheState(*(pt.as_tensor(x).type() for x in initial))
    >>> q = pt.tensor("q", shape=(1, 6, 1, 16), dtype="float32")
    >>> k = pt.tensor("k", shape=(1, 2, 1, 16), dtype="float32")
    >>> v = pt.tensor("v", shape=(1, 2, 1, 16), dtype="float32")
    >>> attended, state = cache.attend(q, k, v, state, rotary=RotaryEmbedding(head_dim=16))
    >>> attended.type.shape
    (1, 6, 1, 16)
    """

    def initial_state(
        self, batch: int, n_kv_head: int, head_dim: int, dtype: str = "float32"
    ) -> SinkCacheState:
        """
        Return the empty state.

        Parameters
        ----------
        batch, n_kv_head, head_dim : int
            Number of rows, of key/value heads, and size of a head.
        dtype : str, optional
            dtype of keys and values: float16, float32 or float64. Default is "float32".

        Returns
        -------
        SinkCacheState
            NumPy arrays: keys and values ``(batch, n_kv_head, capacity, head_dim)``, length ``(batch,)``.

        Raises
        ------
        ValueError, TypeError
            If a size is no positive integer or ``dtype`` is another.
        """
        shape = self._shape(batch, n_kv_head, head_dim, dtype)
        return SinkCacheState(
            keys=np.zeros(shape, dtype), values=np.zeros(shape, dtype), length=np.zeros(batch, "int32")
        )

    def nbytes(self, batch: int, n_kv_head: int, head_dim: int, dtype: str = "float32") -> int:
        """
        Return the bytes of the keys and values of a state, without making one.

        Parameters
        ----------
        batch, n_kv_head, head_dim, dtype
            As in :meth:`initial_state`.

        Returns
        -------
        int

        Raises
        ------
        ValueError, TypeError
            As :meth:`initial_state`.

        Examples
        --------
        >>> from pytensor_rope import SinkCache
        >>> SinkCache(sinks=4, window=1020).nbytes(batch=1, n_kv_head=8, head_dim=128, dtype="float16")
        4194304
        """
        shape = self._shape(batch, n_kv_head, head_dim, dtype)
        return 2 * math.prod(shape) * np.dtype(dtype).itemsize

    def _shape(self, batch: int, n_kv_head: int, head_dim: int, dtype: str) -> tuple[int, int, int, int]:
        shape = (
            whole_number("batch", batch, least=1),
            whole_number("n_kv_head", n_kv_head, least=1),
            self.capacity,
            whole_number("head_dim", head_dim, least=1),
        )
        if dtype not in FLOAT_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(FLOAT_DTYPES)}; got {dtype!r}.")
        return shape

    def attend(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        state: SinkCacheState,
        *,
        rotary: RotaryEmbedding,
        scale: float | None = None,
        mask: TensorLike | None = None,
    ) -> tuple[Tensor, SinkCacheState]:
        """
        Attend to the cache and to a chunk of new tokens, and put the chunk into the cache.

        Parameters
        ----------
        q : tensor
            Queries, not rotated, ``(batch, n_head, seq, head_dim)``, with at least one token.
        k, v : tensor
            Keys, not rotated, and values, ``(batch, n_kv_head, seq, head_dim)``, in q's dtype. Each
            key/value head serves ``n_head // n_kv_head`` consecutive query heads.
        state : SinkCacheState
            The state before the chunk.
        rotary : RotaryEmbedding
            The rotation of queries and keys.
        scale : float, optional
            Factor on the scores. Default is ``1 / sqrt(head_dim)``, corrected by ``softmax_scaling`` where
            the rotation's scheme has one.
        mask : tensor, optional
            True for a token, False for padding, ``(batch, seq)``, bool. Padding may stand anywhere in a row.
            It is never written, seen or counted: each row is what it would be without. Default is all tokens.

        Returns
        -------
        attended : tensor
            As ``q``; 0 for padding.
        new_state : SinkCacheState
            The state after the chunk; the one given stays valid.

        Raises
        ------
        ValueError, TypeError
            If a rank, static shape or dtype doesn't fit the others or the cache, or the rotation's scheme
            doesn't go with ``positions="wrapped"``.
        """
        q, k, v = (float_tensor(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        state = SinkCacheState(*(pt.as_tensor(x) for x in state))
        self._check(q, k, v, state)
        if not isinstance(rotary, RotaryEmbedding):
            raise TypeError(f"rotary must be a RotaryEmbedding; got {rotary!r}.")
        rotary = rotary.sequential()
        packing = None if mask is None else Packing(mask, like=k)
        if packing is not None:
            q, k, v = packing.pack(q), packing.pack(k), packing.pack(v)
        count = None if packing is None else packing.count
        positions = self.chunk_positions(state.length, k, count)
        length_after = self.length_after(state.length, k, count)
        angles = self.angles(rotary, positions, state.length, length_after, like=q)
        turned = rotary.rotate(k, *angles.key)
        attended = sink_attention(
            rotary.rotate(q, *angles.query),
            rotary.rotate(q, *angles.sink_query),
            turned,
            v,
            positions,
            state.keys if angles.cached is None else rotary.rotate(state.keys, *angles.cached),
            state.values,
            self.slot_positions(state.length),
            sinks=self.sinks,
            window=self.window,
            scale=_softmax_scale(rotary, q) if scale is None else finite_number("scale", scale),
        )
        if packing is not None:
            attended = packing.unpack(attended)
        return attended, self.update(state, turned if rotary.scaling.caches_rotated_keys else k, v, count)

    def angles(
        self,
        rotary: RotaryEmbedding,
        positions: Tensor,
        length: Tensor,
        length_after: Tensor,
        *,
        like: Tensor | None = None,
        dtype: str | None = None,
    ) -> SinkAngles:
        """
        Return what to rotate queries, keys and, where they are kept as they were, cached keys by.

        Parameters
        ----------
        rotary : RotaryEmbedding
            The rotation, of one position axis.
        positions : tensor
            Of the chunk's tokens, ``(batch, seq)``, as :meth:`chunk_positions` gives them.
        length, length_after : tensor
            Tokens seen before the chunk, and with it, ``(batch,)``.
        like, dtype
            As :meth:`RotaryEmbedding.angles` takes them.

        Returns
        -------
        SinkAngles
            For a scheme whose frequencies change with the length, all of them those of ``length_after``, or
            with in-cache positions of as much of it as the cache shows.

        Raises
        ------
        ValueError
            With ``positions="wrapped"``, if a key's rotation doesn't stay right.
        """
        from_sinks = self.sink_query_positions(positions)
        if rotary.scaling.caches_rotated_keys:
            turn = rotary.angles(self.query_positions(positions), like=like, dtype=dtype)
            sink_query = rotary.angles(from_sinks, like=like, dtype=dtype)
            return SinkAngles(query=turn, sink_query=sink_query, key=turn, cached=None)

        if self.positions == "wrapped":
            raise ValueError(
                f'positions="wrapped" rotates each key once, and the keys of {type(rotary.scaling).__name__} '
                f'don\'t stay right: use positions="cache".'
            )
        visible = self.sink_query_positions(length_after - pinned(1, "int32")) + pinned(1, "int32")

        def turned(position_ids: Tensor, of: str) -> tuple[Tensor, Tensor]:
            return rotary.angles(position_ids, like=like, dtype=dtype, of=of, length=visible)

        # The window's own positions may be counted from anywhere. From nearby, no decay overflows.
        start = pt.maximum(length - pinned(self.sinks + self.window, "int32"), pinned(0, "int32"))[:, None]
        held = self.slot_positions(length)
        is_sink = np.arange(self.capacity) < self.sinks
        return SinkAngles(
            query=turned(positions - start, "queries"),
            sink_query=turned(from_sinks, "queries"),
            key=turned(positions - start, "keys"),
            cached=turned(pt.where(is_sink, held, held - start), "keys"),
        )

    def update(
        self, state: SinkCacheState, k: Tensor, v: Tensor, count: Tensor | None = None
    ) -> SinkCacheState:
        """
        Put a chunk's keys and values into the cache.

        Parameters
        ----------
        state : SinkCacheState
            The state before the chunk.
        k, v : tensor
            Keys, rotated as those of ``state`` are, and values, ``(batch, n_kv_head, seq, head_dim)``.
        count : tensor, optional
            Number of the chunk's tokens that are real, ``(batch,)``; the others come last and are not
            written. Default is all.

        Returns
        -------
        SinkCacheState
            The state after the chunk.
        """
        length = self.length_after(state.length, k, count)
        write = self._write_one if k.type.shape[2] == 1 else self._write_chunk
        return SinkCacheState(
            keys=write(state.keys, k, state.length, length),
            values=write(state.values, v, state.length, length),
            length=length,
        )

    def rewind(self, state: SinkCacheState, n: TensorLike) -> SinkCacheState:
        """
        Take back each row's last tokens: what is read next follows those that remain.

        Only the length changes, for a state's slots follow from it. The tokens that come back into view must
        not have been overwritten, which a state alone can't tell: a row must keep at least
        :meth:`earliest_length` of the longest it has been (since it was empty). :class:`Stream` keeps count
        of that.

        Parameters
        ----------
        state : SinkCacheState
            The state to go back from, arrays or variables.
        n : int or tensor
            Number of tokens, for all rows or one for each, ``(batch,)``.

        Returns
        -------
        SinkCacheState
            With the same keys and values, and of the kind given.

        Raises
        ------
        ValueError, TypeError
            If a number is no integer, negative, or, in a state of arrays, more than a row has; or if they
            are not one for each row.

        Examples
        --------
        >>> from pytensor_rope import SinkCache
        >>> cache = SinkCache(sinks=4, window=8, headroom=3)
        >>> state = cache.initial_state(batch=2, n_kv_head=1, head_dim=2)
        >>> state = state._replace(length=state.length + 20)
        >>> cache.rewind(state, [3, 0]).length
        array([17, 20], dtype=int32)
        """
        if isinstance(n, int | np.integer | Sequence | np.ndarray):
            counts = token_counts("n", n)
            _check_one_a_row(counts.shape, state.length)
            if isinstance(state.length, np.ndarray) and (counts > state.length).any():
                raise ValueError(
                    f"n must be at most the tokens of each row, {state.length.tolist()}; got {n!r}."
                )
            return state._replace(length=state.length - counts)
        symbolic = named_tensor(n, "n")
        if not symbolic.dtype.startswith(("int", "uint")) or symbolic.ndim > 1:
            raise TypeError(f"n must be one integer, or one a row; got {symbolic.type}.")
        _check_one_a_row(symbolic.type.shape, state.length)
        return state._replace(length=state.length - symbolic.astype("int32"))

    def _write_one(self, rows: Tensor, new: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Write one token a row into its slot, in place where the linker can."""
        slot = remap_positions(before, self.sinks, self.ring)
        written = pt.lt(before, after)[:, None, None]
        if rows.type.shape[0] == 1:
            at = rows[:, :, slot[0]]
        else:
            at = rows[axis_indices(rows, 0)[:, None], axis_indices(rows, 1)[None, :], slot[:, None]]
        return cast(Tensor, at.set(pt.where(written, new[:, :, 0], at)))

    def _write_chunk(self, rows: Tensor, new: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """
        Let each slot take the chunk's last token that belongs in it, if any does.

        Two tokens of one chunk may belong in one slot, and a scatter would leave open which stays.
        """
        held = self.slot_positions(after)
        token = held - before[:, None]
        source = pt.where(pt.ge(token, pinned(0, "int32")), token, pinned(-1, "int32"))
        return cast(Tensor, WriteTokens()(rows, new, source))

    def _check(self, q: Tensor, k: Tensor, v: Tensor, state: SinkCacheState) -> None:
        named = {"q": q, "k": k, "v": v, "state.keys": state.keys, "state.values": state.values}
        for name, x in named.items():
            if x.ndim != 4:
                raise ValueError(f"{name} must be (batch, heads, seq, head_dim); got {x.ndim} dimensions.")
        dtypes = {name: x.dtype for name, x in named.items()}
        if len(set(dtypes.values())) > 1:
            shown = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
            raise TypeError(f"q, k, v and the state must have one dtype; got {shown}.")
        if state.length.dtype != "int32" or state.length.ndim != 1:
            raise TypeError(f"state.length must be (batch,) of int32; got {state.length.type}.")
        _agree("batch", 0, named | {"state.length": state.length})
        _agree("n_kv_head", 1, {name: x for name, x in named.items() if name != "q"})
        _agree("seq", 2, {name: named[name] for name in ("q", "k", "v")})
        if 0 in (q.type.shape[2], k.type.shape[2]):
            raise ValueError("A chunk must have at least one token; got q, k and v with a seq of 0.")
        _agree("head_dim", 3, named)
        n_head, n_kv_head = q.type.shape[1], k.type.shape[1]
        if None not in (n_head, n_kv_head) and n_head % n_kv_head:
            raise ValueError(f"k's heads must divide q's; got {n_kv_head} and {n_head}.")
        for name in ("state.keys", "state.values"):
            slots = named[name].type.shape[2]
            if slots not in (None, self.capacity):
                raise ValueError(f"{name} has {slots} slots, but {self!r} has {self.capacity}.")


def _softmax_scale(rotary: RotaryEmbedding, q: Tensor) -> float | None:
    """Return the scale that a rotation's scheme asks for, None for ``1 / sqrt(head_dim)``."""
    correction = rotary.scaling.softmax_scaling
    if correction == 1:
        return None
    head_dim = rotary.head_dim or q.type.shape[3]
    if head_dim is None:
        raise ValueError(
            f"{type(rotary.scaling).__name__} corrects the softmax scale, which needs a known head_dim: give "
            f"it to the RotaryEmbedding, or pass scale."
        )
    return float(correction / np.sqrt(head_dim))


def _check_one_a_row(shape: tuple[int | None, ...], length: Any) -> None:
    rows = length.type.shape if hasattr(length, "type") else length.shape
    if shape and None not in (*shape, *rows) and shape != rows:
        raise ValueError(f"n must be one number, or one for each of {rows[0]} rows; got {shape[0]}.")


def _agree(what: str, axis: int, tensors: dict[str, Tensor]) -> None:
    sizes = {name: x.type.shape[axis] for name, x in tensors.items()}
    if len({size for size in sizes.values() if size is not None}) > 1:
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"{what} must be the same for all; got {shown}.")
