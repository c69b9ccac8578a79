"""Where a sink cache keeps its tokens, and the positions at which they are seen."""

from typing import cast, override

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pytensor.tensor import TensorLike

from pytensor_rope.base import Tensor, axis_indices, named_tensor, pinned
from pytensor_rope.checks import one_of, token_counts, whole_number
from pytensor_rope.frequencies import FrequencyScheme

POSITIONS = ("cache", "absolute", "wrapped")


class SinkLayout:
    """
    The geometry of a :class:`SinkCache`: which position is in which slot, and which rotates what.

    Layouts of the same arguments are equal. See :class:`SinkCache` for the parameters.
    """

    def __init__(self, sinks: int, window: int, headroom: int = 0, positions: str = "cache") -> None:
        self.sinks = whole_number("sinks", sinks, least=0)
        self.window = whole_number("window", window, least=1)
        self.headroom = whole_number("headroom", headroom, least=0)
        self.positions = one_of("positions", positions, POSITIONS)
        if positions == "wrapped":
            self.headroom = _wrapped_headroom(self.window, self.headroom)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, SinkLayout) and self._geometry() == other._geometry()

    @override
    def __hash__(self) -> int:
        return hash(self._geometry())

    @override
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(sinks={self.sinks}, window={self.window}, headroom={self.headroom}, "
            f"positions={self.positions!r})"
        )

    def _geometry(self) -> tuple[int, int, int, str]:
        return self.sinks, self.window, self.headroom, self.positions

    @property
    def ring(self) -> int:
        """Number of slots that later tokens go around in: ``window + headroom``, so 2 windows if wrapped."""
        return self.window + self.headroom

    @property
    def capacity(self) -> int:
        """Number of slots: ``sinks + window + headroom``."""
        return self.sinks + self.ring

    def longest_chunk(self, scheme: FrequencyScheme, length: int) -> int | None:
        """
        Return how many tokens can be read as one chunk after ``length``, as if they were read one by one.

        A chunk is read by the frequencies of its last token, so where they follow the length, they must be
        the same for all of it.

        Parameters
        ----------
        scheme : FrequencyScheme
            The rotation's scheme.
        length : int
            Tokens seen before the chunk.

        Returns
        -------
        int or None
            The most tokens, at least 1; None for any number.
        """
        shown = length + 1
        if self.positions == "cache":
            shown = min(shown, self.sinks + self.window)
        last = scheme.same_until(shown)
        if last is None or (self.positions == "cache" and last >= self.sinks + self.window):
            return None
        return last - length

    def chunk_positions(self, length: Tensor, like: Tensor, count: Tensor | None = None) -> Tensor:
        """
        Return the positions of a chunk's tokens, ``(batch, seq)``, int32.

        Parameters
        ----------
        length : tensor
            Tokens seen before the chunk, ``(batch,)``.
        like : tensor
            Keys or values of the chunk, ``(batch, n_kv_head, seq, head_dim)``, or its token ids, ``(batch,
            seq)``, for its length.
        count : tensor, optional
            Number of the chunk's tokens that are real, ``(batch,)``; the others come last and get
            position -1. Default is all.
        """
        indices = axis_indices(like, token_axis(like))[None, :]
        positions: Tensor = length[:, None] + indices
        if count is None:
            return positions
        return cast(Tensor, pt.where(pt.lt(indices, count[:, None]), positions, pinned(-1, "int32")))

    def length_after(self, length: Tensor, like: Tensor, count: Tensor | None = None) -> Tensor:
        """Return the tokens seen with a chunk, ``(batch,)``; parameters as of :meth:`chunk_positions`."""
        if count is not None:
            return cast(Tensor, length + count)
        axis = token_axis(like)
        seq = like.type.shape[axis]
        return cast(
            Tensor, length + (like.shape[axis].astype("int32") if seq is None else pinned(seq, "int32"))
        )

    def query_positions(self, positions: Tensor) -> Tensor:
        """Return the positions that rotate the keys at ``positions``, and queries for all but the sinks."""
        if self.positions == "wrapped":
            return remap_positions(positions, self.sinks, self.ring)
        return positions

    def sink_query_positions(self, positions: Tensor) -> Tensor:
        """Return the positions from which queries at ``positions`` see the sinks."""
        if self.positions != "cache":
            return self.query_positions(positions)
        last = pinned(self.sinks + self.window - 1, "int32")
        return cast(Tensor, pt.minimum(positions, last))

    def slot_positions(self, length: Tensor) -> Tensor:
        """Return the position each slot holds after ``length`` tokens, -1 for none, ``(batch, capacity)``."""
        slots = np.arange(self.capacity, dtype="int32")[None, :]
        ring, one = pinned(self.ring, "int32"), pinned(1, "int32")
        last = length[:, None] - one
        # Whole laps of the ring behind a slot's first position; before that position there are none.
        laps = pt.maximum(last - slots, pinned(0, "int32")) // ring
        laps = laps * (slots >= self.sinks).astype("int32")
        held = slots + ring * laps
        return cast(Tensor, pt.where(pt.le(held, last), held, pinned(-1, "int32")))

    def earliest_length(self, longest: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """
        Return how far back a row can be rewound: ``longest - headroom``, or to 0 until a slot is overwritten.

        Parameters
        ----------
        longest : int or array
            The most tokens that the row has had since it was empty.

        Returns
        -------
        numpy.ndarray
            The shape of ``longest``, int64.
        """
        tokens = token_counts("longest", longest).astype("int64")
        return np.where(tokens <= self.capacity, 0, tokens - self.headroom)


def remap_positions(position_ids: TensorLike, sinks: int, ring: int) -> Tensor:
    r"""
    Return positions as ExecuTorch numbers them: bounded, for any length of a stream.

    The first S positions stay; a later one :math:`p` becomes :math:`S + (p - S) \bmod R`, the slot of a ring
    of R that follows S sinks. Within one lap of the ring distances are true.

    Parameters
    ----------
    position_ids : tensor
        Integers of any dtype and shape; negative ones, which mark padding, stay as they are.
    sinks : int
        The number S of positions that stay.
    ring : int
        The number R of positions that the others go around in: in ExecuTorch twice the window.

    Returns
    -------
    tensor
        As ``position_ids``.

    Raises
    ------
    TypeError
        If ``position_ids`` are no integers, or ``sinks`` or ``ring`` is none.
    ValueError
        If ``sinks`` is negative or ``ring`` below 1.

    References
    ----------
    .. [1] "Enable infinite generation with RoPE position remapping for attention sink",
       https://github.com/pytorch/executorch/pull/19011.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_rope import function, remap_positions
    >>> positions = np.array([-1, 0, 3, 4, 35, 36, 100])
    >>> function([], remap_positions(positions, sinks=4, ring=32), backend="c")()
    array([-1,  0,  3,  4, 35,  4,  4])
    """
    positions = named_tensor(position_ids, "position_ids")
    if not positions.dtype.startswith(("int", "uint")):
        raise TypeError(f"position_ids must be integers; got {positions.dtype}.")
    sinks = whole_number("sinks", sinks, least=0)
    ring = whole_number("ring", ring, least=1)
    most = np.iinfo(positions.dtype).max
    if sinks > most or ring > most:
        return positions  # No position of this dtype comes round.
    first, lap = pinned(sinks, positions.dtype), pinned(ring, positions.dtype)
    wrapped = first + (positions - first) % lap
    return cast(Tensor, pt.where(pt.lt(positions, first), positions, wrapped))


def _wrapped_headroom(window: int, headroom: int) -> int:
    if headroom > window:
        raise ValueError(
            f'With positions="wrapped", headroom must be at most the window, {window}, for the ring has two '
            f"windows; got {headroom}."
        )
    return window


def token_axis(x: Tensor) -> int:
    """Return the axis of the tokens in ``(batch, seq)`` or ``(batch, heads, seq, head_dim)``."""
    return 1 if x.ndim == 2 else 2
