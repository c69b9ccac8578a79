"""Rotary position embeddings."""

from typing import cast

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor import TensorLike
from pytensor.tensor.shape import specify_shape
from pytensor.tensor.variable import TensorConstant

from pytensor_rope.angles import SYMBOLIC_SCHEMES, angles
from pytensor_rope.base import (
    FLOAT_DTYPES,
    Tensor,
    VariadicLayer,
    float_tensor,
    named_tensor,
    resolve_name,
)
from pytensor_rope.checks import one_of, positive_number, true_or_false, whole_number
from pytensor_rope.frequencies import FrequencyScheme, check_rotary_dim, resolve_scaling
from pytensor_rope.rotate import PAIRINGS, check_batch, check_sequence, rotate

_ROLES = ("queries", "keys")


class RotaryEmbedding(VariadicLayer):
    r"""
    Rotary position embedding.

    Each pair of dimensions :math:`(x_a, x_b)` of a head at position :math:`p` is turned by
    :math:`\phi = p\,\theta_i`,

    .. math::

        (x_a,\ x_b) \mapsto (x_a \cos\phi - x_b \sin\phi,\ x_b \cos\phi + x_a \sin\phi),

    so that the product of a query and a key depends on the distance between their positions alone.
    Integer positions give exact angles, however large; the angles are in float32 (float64 for float64
    inputs), and the output has the input's dtype.

    Parameters
    ----------
    name : str, optional
        Name of the layer; its output is named ``{name}_output``. Default is "RotaryEmbedding".
    head_dim : int, optional
        Size of the last axis. Checked against the input; with an input whose last axis is not known
        statically it makes the frequencies exact there too.
    base : float, optional
        Base of the frequencies, often called theta. Default is 10000.
    pairing : {"half", "adjacent"}, optional
        Which dimensions make a pair: ``i`` with ``i + rotary_dim // 2`` (Hugging Face, GPT-NeoX), or
        ``2 * i`` with ``2 * i + 1`` (RoFormer, GPT-J, torchtune). Default is "half".
    scaling : {"none", "linear", "ntk"} or FrequencyScheme, optional
        Frequency scheme: one of :mod:`pytensor_rope.frequencies`, or the short name of a simple one.
        Default is "none".
    scaling_factor : float, optional
        Stretch of a scheme given by its short name. Default is 1.
    rotary_dim : int, optional
        Number of leading dimensions to rotate; the rest passes through unchanged. Default is all.
    exact : bool, optional
        Count the angles of integer positions in fixed point, exact at every position. False takes the
        customary float32 product of position and frequency, whose error grows with the position, for
        comparison with other libraries. Default is True.

    Attributes
    ----------
    scaling : FrequencyScheme
        The scheme, also where its short name was given.

    Raises
    ------
    ValueError
        If a hyper-parameter is out of range or unknown, or an input contradicts it.
    TypeError
        If ``name`` isn't a string, a dimension no integer or ``base`` no number, an input's dtype is
        refused, or there are not two.

    Notes
    -----
    A scheme of several position axes (:class:`~pytensor_rope.frequencies.MRoPE`,
    :class:`~pytensor_rope.frequencies.Axial`) takes ``position_ids`` with a leading axis for them.

    One whose frequencies depend on the length of the sequence
    (:class:`~pytensor_rope.frequencies.DynamicNTK`, :class:`~pytensor_rope.frequencies.LongRoPE`) takes
    the length of each row from ``length``, or else from its last position. Nothing is remembered from
    call to call: the same positions give the same angles.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import RotaryEmbedding
    >>> from pytensor_rope.frequencies import YaRN
    >>> queries = pt.tensor("queries", shape=(None, 9, None, 64), dtype="float32")
    >>> rotary = RotaryEmbedding(scaling=YaRN(factor=4.0, original_max_position_embeddings=8192))
    >>> rotated = rotary(queries, np.arange(16))
    >>> rotated.dtype, rotated.type.shape
    ('float32', (None, 9, 16, 64))
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        head_dim: int | None = None,
        base: float = 10_000.0,
        pairing: str = "half",
        scaling: str | FrequencyScheme = "none",
        scaling_factor: float = 1.0,
        rotary_dim: int | None = None,
        exact: bool = True,
    ) -> None:
        self.name = resolve_name(name, type(self).__name__, "head_dim")
        self.base = positive_number("base", base)
        self.scaling = resolve_scaling(scaling, scaling_factor)
        self.pairing = one_of("pairing", pairing, PAIRINGS)
        self.exact = true_or_false("exact", exact)
        self.head_dim, self.rotary_dim = _check_dims(head_dim, rotary_dim)
        if (d := self.rotary_dim or self.head_dim) is not None:
            self.scaling.check(d, self.base)

    def __repr__(self) -> str:
        shown = ("head_dim", "base", "pairing", "scaling", "rotary_dim", "exact")
        settings = ", ".join(f"{key}={getattr(self, key)!r}" for key in shown)
        return f"{type(self).__name__}({self.name!r}, {settings})"

    def sequential(self) -> "RotaryEmbedding":
        """Return the rotation for positions along one axis, as text has them."""
        if self.scaling.n_axis == 1:
            return self
        return RotaryEmbedding(
            self.name,
            head_dim=self.head_dim,
            base=self.base,
            pairing=self.pairing,
            scaling=self.scaling.sequential,
            rotary_dim=self.rotary_dim,
            exact=self.exact,
        )

    def __call__(self, *inputs: TensorLike, of: str = "queries", length: TensorLike | None = None) -> Tensor:
        """
        Rotate ``x`` by ``position_ids``.

        Parameters
        ----------
        x : tensor
            Shape ``(..., n_head, seq, head_dim)``, float16, float32 or float64.
        position_ids : tensor
            Shape ``(seq,)`` or ``(batch..., seq)``, integers (of any sign) or floats. Head axes are
            inserted here. A scheme of several position axes takes them as a further leading axis.
        of : {"queries", "keys"}, optional
            What ``x`` holds. Only :class:`~pytensor_rope.frequencies.XPos` treats them differently.
            Default is "queries".
        length : tensor, optional
            As :meth:`angles` takes it.

        Returns
        -------
        tensor
            As ``x``.
        """
        if len(inputs) != 2:
            raise TypeError(f"{self.name} takes x and position_ids; got {len(inputs)} inputs.")
        x = float_tensor(inputs[0], "x")
        position_ids = _check_position_ids(inputs[1], x, self.scaling.n_axis)
        if self.head_dim is not None:
            self._resolve_rotary_dim(x)
            x = specify_shape(x, (*x.type.shape[:-1], self.head_dim))
        cos, sin = self.angles(position_ids, like=x, of=of, length=length)
        out = specify_shape(self.rotate(x, cos, sin), x.type.shape)
        out.name = f"{self.name}_output"
        return cast(Tensor, out)

    def angles(
        self,
        position_ids: TensorLike,
        *,
        like: Tensor | None = None,
        dtype: str | None = None,
        of: str = "queries",
        length: TensorLike | None = None,
    ) -> tuple[Tensor, Tensor]:
        """
        Return the cosines and sines for ``position_ids``, to be shared by every input to rotate.

        Parameters
        ----------
        position_ids : tensor
            Shape ``(seq,)`` or ``(batch..., seq)``, with a further leading axis for a scheme of several
            position axes.
        like : tensor, optional
            An input to rotate, ``(..., n_head, seq, head_dim)``: gives the dtype and the head dimension.
        dtype : str, optional
            In place of ``like``, where the layer knows its ``head_dim`` or ``rotary_dim``.
        of : {"queries", "keys"}, optional
            What is to be rotated. Default is "queries".
        length : tensor, optional
            Number of tokens of the sequence, scalar or ``(batch...)``, integers, for schemes whose
            frequencies depend on it. Default is one more than the last position of each row.

        Returns
        -------
        cos, sin : tensor
            Shape ``(..., seq, rotary_dim // 2)``, with a head axis of 1 before ``seq`` where
            ``position_ids`` has batch axes; float64 for float64 inputs, else float32. What the scheme
            multiplies rotated queries and keys with (``scaling.attention_scaling``) is in both.

        Raises
        ------
        ValueError
            If not one of ``like`` and ``dtype`` is given, the layer doesn't know its dimension, or ``of``
            is something else.
        TypeError
            If ``position_ids`` are no numbers, or ``length`` no integers.
        """
        if (like is None) == (dtype is None):
            raise ValueError(f"{self.name} takes the dtype from like or from dtype: pass one of them.")
        of = one_of("of", of, _ROLES)
        rotary_dim = self.rotary_dim or self.head_dim
        if like is not None:
            like = float_tensor(like, "like")
            rotary_dim, dtype = self._resolve_rotary_dim(like), like.dtype
        elif rotary_dim is None:
            raise ValueError(f"{self.name} has no head_dim or rotary_dim: pass like to take it from.")
        dtype = one_of("dtype", dtype, FLOAT_DTYPES)
        position_ids = _numbers(position_ids)
        cos, sin = angles(
            position_ids,
            rotary_dim,
            dtype=dtype,
            like=like,
            base=self.base,
            scheme=self.scaling,
            exact=self.exact,
            of=of,
            length=None if length is None else _check_length(length),
        )
        if cos.ndim > 2:
            cos, sin = pt.expand_dims(cos, -3), pt.expand_dims(sin, -3)
        return cos, sin

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """
        Rotate ``x`` by angles that :meth:`angles` gave.

        Parameters
        ----------
        x : tensor
            Shape ``(..., n_head, seq, head_dim)``, float16, float32 or float64.
        cos, sin : tensor
            Shape ``(seq, rotary_dim // 2)`` or ``(batch..., 1, seq, rotary_dim // 2)``.

        Returns
        -------
        tensor
            As ``x``.

        Raises
        ------
        ValueError, TypeError
            If ``x`` contradicts the layer's dimensions or isn't of a float dtype.
        """
        x = float_tensor(x, "x")
        self._resolve_rotary_dim(x)
        out = rotate(
            x,
            cos,
            sin,
            pairing=self.pairing,
            rotary_dim=self.rotary_dim or self.head_dim,
        )
        out.name = f"{self.name}_output"
        return out

    def _resolve_rotary_dim(self, x: Tensor) -> int | None:
        """Return the rotary dimension, or None while nothing says what it is."""
        static = x.type.shape[-1]
        if None not in (static, self.head_dim) and static != self.head_dim:
            raise ValueError(
                f"{self.name} has head_dim={self.head_dim}, but the input's last axis is {static}."
            )
        if self.rotary_dim is not None:
            if static is not None and self.rotary_dim > static:
                raise ValueError(
                    f"{self.name} rotates rotary_dim={self.rotary_dim} dimensions, but the input's "
                    f"last axis has only {static}."
                )
            return self.rotary_dim
        d = self.head_dim if self.head_dim is not None else static
        if d is None:
            if not isinstance(self.scaling, SYMBOLIC_SCHEMES):
                raise ValueError(
                    f"{type(self.scaling).__name__} must know how much it rotates: pass head_dim or "
                    f"rotary_dim, or an input whose last axis is known."
                )
            return None
        self.scaling.check(check_rotary_dim(d, "head_dim"), self.base)
        return d


def rotary_embedding(
    x: TensorLike,
    position_ids: TensorLike,
    *,
    base: float = 10_000.0,
    pairing: str = "half",
    scaling: str | FrequencyScheme = "none",
    scaling_factor: float = 1.0,
    rotary_dim: int | None = None,
    exact: bool = True,
    of: str = "queries",
    length: TensorLike | None = None,
) -> Tensor:
    """
    Rotate ``x`` by its positions.

    Parameters
    ----------
    x : tensor
        Shape ``(..., n_head, seq, head_dim)``, float16, float32 or float64.
    position_ids : tensor
        Shape ``(seq,)`` or ``(batch..., seq)``, integers (of any sign) or floats. Head axes are inserted
        here.
    base, pairing, scaling, scaling_factor, rotary_dim, exact
        As in :class:`RotaryEmbedding`.
    of, length
        As calling a :class:`RotaryEmbedding` takes them.

    Returns
    -------
    tensor
        As ``x``.

    Raises
    ------
    ValueError, TypeError
        As :class:`RotaryEmbedding`.

    Notes
    -----
    Where neither ``x``'s static shape nor ``rotary_dim`` gives the rotary dimension, the C and Numba
    backends take the angle as a float64 product: within 1e-9 rad below position :math:`10^6` and 3e-7
    below :math:`2^{31}`. JAX and MLX see concrete shapes and stay exact. Schemes other than "none",
    "linear" and "ntk" need to know it.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import function, rotary_embedding
    >>> x = pt.tensor("x", shape=(None, None, 4), dtype="float32")
    >>> rotate = function([x], rotary_embedding(x, np.array([1])), backend="numba")
    >>> rotate(np.ones((1, 1, 4), "float32")).round(3)
    array([[[-0.301,  0.99 ,  1.382,  1.01 ]]], dtype=float32)
    """
    layer = RotaryEmbedding(
        "rotary_embedding",
        base=base,
        pairing=pairing,
        scaling=scaling,
        scaling_factor=scaling_factor,
        rotary_dim=rotary_dim,
        exact=exact,
    )
    return layer(x, position_ids, of=of, length=length)


def _check_dims(head_dim: int | None, rotary_dim: int | None) -> tuple[int | None, int | None]:
    if rotary_dim is not None:
        rotary_dim = check_rotary_dim(rotary_dim)
    if head_dim is None:
        return None, rotary_dim
    if rotary_dim is None:
        return check_rotary_dim(head_dim, "head_dim"), None
    head_dim = whole_number("head_dim", head_dim, least=1)
    if rotary_dim > head_dim:
        raise ValueError(f"rotary_dim={rotary_dim} is larger than head_dim={head_dim}.")
    return head_dim, rotary_dim


def _check_length(length: TensorLike) -> Tensor:
    """Return the lengths of sequences as int64, refusing what are none."""
    given = named_tensor(length, "length")
    if not given.dtype.startswith(("int", "uint")):
        raise TypeError(f"length must be integers, the number of tokens of each sequence; got {given.dtype}.")
    if isinstance(given, TensorConstant) and (np.asarray(given.data) < 1).any():
        raise ValueError(f"length must be at least 1; got {given.data}.")
    # PyTensor makes an int8 of a small number.
    return cast(Tensor, given.astype("int64"))


def _numbers(position_ids: TensorLike) -> Tensor:
    positions = named_tensor(position_ids, "position_ids")
    if positions.dtype == "bool" or positions.dtype.startswith("complex"):
        raise TypeError(f"position_ids must be integers or floats; got {positions.dtype}.")
    return positions


def _check_position_ids(position_ids: TensorLike, x: Tensor, n_axis: int) -> Tensor:
    positions = _numbers(position_ids)
    if x.ndim < 2:
        raise ValueError(f"x must be (..., n_head, seq, head_dim); got {x.ndim} dimensions.")
    leading = 0 if n_axis == 1 else 1
    most = max(x.ndim - 2, 1)
    if not 1 <= positions.ndim - leading <= most:
        axes = f"({n_axis}, " if leading else "("
        raise ValueError(
            f"position_ids must be {axes}seq) or {axes}batch..., seq), so {1 + leading} to {most + leading} "
            f"dimensions for an x of {x.ndim}; got {positions.ndim}. Leave the head axis out: it is inserted "
            f"for you."
        )
    if leading and positions.type.shape[0] not in (None, n_axis):
        raise ValueError(
            f"position_ids must have a leading axis of {n_axis}, for the scheme's position axes; got shape "
            f"{positions.type.shape}."
        )
    check_sequence(x.type.shape[-2], positions.type.shape[-1])
    check_batch(x.type.shape[:-3], positions.type.shape[leading:-1])
    return positions
