"""Rotary position embeddings."""

from collections.abc import Sequence
from typing import Any, cast, override

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor import TensorLike
from pytensor.tensor.shape import specify_shape

from pytensor_rope.angles import angles
from pytensor_rope.base import (
    BroadcastingLayerOp,
    Tensor,
    VariadicLayer,
    computation_dtype,
    float_tensor,
    resolve_name,
    sizes,
)
from pytensor_rope.checks import whole_number
from pytensor_rope.frequencies import check_rotary_dim, check_scheme, check_scheme_fits

PAIRINGS = ("half", "adjacent")


class Rotate(BroadcastingLayerOp):
    """
    Rotate pairs of the last axis of ``x`` by angles given as ``cos`` and ``sin``.

    Inputs are ``x (..., seq, head_dim)`` and cos and sin ``(..., seq, rotary_dim // 2)``, which broadcast
    over the leading axes. What lies beyond the rotary dimension passes through unchanged.
    """

    __props__ = ("pairing", "rotary_dim")

    pairing: str
    rotary_dim: int | None

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        x, cos, sin = inputs
        _check_sequence(x.type.shape[-2], cos.type.shape[-2])
        d = self._rotated(x)
        _check_batch(x.type.shape[:-2], cos.type.shape[:-2])
        head_dim = x.type.shape[-1]
        if isinstance(d, int) and head_dim is not None and d > head_dim:
            raise ValueError(f"rotary_dim={d} is larger than x's last axis, {head_dim}.")
        dtype = computation_dtype(x.dtype)
        first, second = (half.astype(dtype) for half in self._pairs(x, d))
        cos, sin = cos.astype(dtype), sin.astype(dtype)
        rotated = [first * cos - second * sin, second * cos + first * sin]
        parts = self._lay_out([half.astype(x.dtype) for half in rotated])
        if isinstance(d, int) and d != x.type.shape[-1]:
            parts.append(x[..., d:])
        return [pt.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]

    def _rotated(self, x: Tensor) -> int | Tensor:
        """Return how many of the last axis's dimensions are rotated."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        head_dim: int | None = x.type.shape[-1]
        return x.shape[-1] if head_dim is None else head_dim

    def _pairs(self, x: Tensor, d: int | Tensor) -> tuple[Tensor, Tensor]:
        if self.pairing == "half":
            return x[..., : d // 2], x[..., d // 2 : d]
        if isinstance(d, int):
            return x[..., 0:d:2], x[..., 1:d:2]
        return x[..., 0::2], x[..., 1::2]

    def _lay_out(self, halves: list[Tensor]) -> list[Tensor]:
        """Put the rotated pairs back where they came from, as parts to be joined."""
        if self.pairing == "half":
            return halves
        *leading, n_pair = sizes(halves[0])
        return [pt.stack(halves, axis=-1).reshape((*leading, 2 * n_pair))]

    @override
    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Turn the cotangent back by the same angle; the angles' own gradient is taken pair by pair."""
        x, cos, sin = inputs
        (g,) = cotangents
        d = self._rotated(x)
        x1, x2 = (half.astype(cos.dtype) for half in self._pairs(x, d))
        g1, g2 = (half.astype(cos.dtype) for half in self._pairs(g, d))
        return [
            _sum_to(
                rotate(g, cos, -sin, pairing=self.pairing, rotary_dim=self.rotary_dim),
                x,
            ),
            _sum_to(g1 * x1 + g2 * x2, cos),
            _sum_to(g2 * x1 - g1 * x2, sin),
        ]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: str, rotary_dim: int | None = None) -> Tensor:
    """Rotate ``x`` by the angles whose cosines and sines are given; see :class:`Rotate`."""
    return cast(Tensor, Rotate(pairing=pairing, rotary_dim=rotary_dim)(x, cos, sin))


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
    scaling : {"none", "linear", "ntk"}, optional
        Frequency scheme; see :func:`inverse_frequencies`. Default is "none".
    scaling_factor : float, optional
        Stretch of the scheme. Default is 1.
    rotary_dim : int, optional
        Number of leading dimensions to rotate; the rest passes through unchanged. Default is all.

    Raises
    ------
    ValueError
        If a hyper-parameter is out of range or unknown, or an input contradicts it.
    TypeError
        If ``name`` isn't a string, a dimension no integer or ``base`` no number, an input's dtype is
        refused, or there are not two.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import RotaryEmbedding
    >>> queries = pt.tensor("queries", shape=(None, 9, None, 64), dtype="float32")
    >>> rotated = RotaryEmbedding(base=100_000.0)(queries, np.arange(16))
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
        scaling: str = "none",
        scaling_factor: float = 1.0,
        rotary_dim: int | None = None,
    ) -> None:
        self.name = resolve_name(name, type(self).__name__, "head_dim")
        self.base, self.scaling, self.scaling_factor = check_scheme(base, scaling, scaling_factor)
        if pairing not in PAIRINGS:
            raise ValueError(f"pairing must be one of {', '.join(PAIRINGS)}; got {pairing!r}.")
        self.pairing = pairing
        self.head_dim, self.rotary_dim = _check_dims(head_dim, rotary_dim)
        if (d := self.rotary_dim or self.head_dim) is not None:
            check_scheme_fits(self.scaling, d)

    def __repr__(self) -> str:
        shown = (
            "head_dim",
            "base",
            "pairing",
            "scaling",
            "scaling_factor",
            "rotary_dim",
        )
        settings = ", ".join(f"{key}={getattr(self, key)!r}" for key in shown)
        return f"{type(self).__name__}({self.name!r}, {settings})"

    def __call__(self, *inputs: TensorLike) -> Tensor:
        """
        Rotate ``x`` by ``position_ids``.

        Parameters
        ----------
        x : tensor
            Shape ``(..., n_head, seq, head_dim)``, float16, float32 or float64.
        position_ids : tensor
            Shape ``(seq,)`` or ``(batch..., seq)``, integers (of any sign) or floats. Head axes are
            inserted here.

        Returns
        -------
        tensor
            As ``x``.
        """
        if len(inputs) != 2:
            raise TypeError(f"{self.name} takes x and position_ids; got {len(inputs)} inputs.")
        x = float_tensor(inputs[0], "x")
        position_ids = _check_position_ids(inputs[1], x)
        if self.head_dim is not None:
            self._resolve_rotary_dim(x)
            x = specify_shape(x, (*x.type.shape[:-1], self.head_dim))
        cos, sin = self.angles(position_ids, like=x)
        out = specify_shape(self.rotate(x, cos, sin), x.type.shape)
        out.name = f"{self.name}_output"
        return cast(Tensor, out)

    def angles(
        self, position_ids: TensorLike, *, like: Tensor | None = None, dtype: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """
        Return the cosines and sines for ``position_ids``, to be shared by every input to rotate.

        Parameters
        ----------
        position_ids : tensor
            Shape ``(seq,)`` or ``(batch..., seq)``.
        like : tensor, optional
            An input to rotate, ``(..., n_head, seq, head_dim)``: gives the dtype and the head dimension.
        dtype : str, optional
            In place of ``like``, where the layer knows its ``head_dim`` or ``rotary_dim``.

        Returns
        -------
        cos, sin : tensor
            Shape ``(..., seq, rotary_dim // 2)``, with a head axis of 1 before ``seq`` where
            ``position_ids`` has batch axes; float64 for float64 inputs, else float32.

        Raises
        ------
        ValueError
            If not one of ``like`` and ``dtype`` is given, or the layer doesn't know its dimension.
        """
        if (like is None) == (dtype is None):
            raise ValueError(f"{self.name} takes the dtype from like or from dtype: pass one of them.")
        rotary_dim = self.rotary_dim or self.head_dim
        if like is not None:
            rotary_dim, dtype = self._resolve_rotary_dim(like), like.dtype
        elif rotary_dim is None:
            raise ValueError(f"{self.name} has no head_dim or rotary_dim: pass like to take it from.")
        assert dtype is not None
        position_ids = pt.as_tensor(position_ids)
        cos, sin = angles(
            position_ids,
            rotary_dim,
            dtype=dtype,
            like=like,
            base=self.base,
            scaling=self.scaling,
            scaling_factor=self.scaling_factor,
        )
        if position_ids.ndim > 1:
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
            return None
        check_scheme_fits(self.scaling, check_rotary_dim(d, "head_dim"))
        return d


def rotary_embedding(
    x: TensorLike,
    position_ids: TensorLike,
    *,
    base: float = 10_000.0,
    pairing: str = "half",
    scaling: str = "none",
    scaling_factor: float = 1.0,
    rotary_dim: int | None = None,
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
    base, pairing, scaling, scaling_factor, rotary_dim
        As in :class:`RotaryEmbedding`.

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
    below :math:`2^{31}`. JAX and MLX see concrete shapes and stay exact.

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
    )
    return layer(x, position_ids)


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


def _check_position_ids(position_ids: TensorLike, x: Tensor) -> Tensor:
    positions: Tensor = pt.as_tensor(position_ids)
    if positions.dtype == "bool" or positions.dtype.startswith("complex"):
        raise TypeError(f"position_ids must be integers or floats; got {positions.dtype}.")
    if x.ndim < 2:
        raise ValueError(f"x must be (..., n_head, seq, head_dim); got {x.ndim} dimensions.")
    most = max(x.ndim - 2, 1)
    if not 1 <= positions.ndim <= most:
        raise ValueError(
            f"position_ids must be (seq,) or (batch..., seq), so 1 to {most} dimensions for an x of "
            f"{x.ndim}; got {positions.ndim}. Leave the head axis out: it is inserted for you."
        )
    _check_sequence(x.type.shape[-2], positions.type.shape[-1])
    _check_batch(x.type.shape[:-3], positions.type.shape[:-1])
    return positions


def _check_batch(batch: tuple[int | None, ...], of_positions: tuple[int | None, ...]) -> None:
    for size, given in zip(batch[::-1], of_positions[::-1], strict=False):
        if None not in (size, given) and given not in (1, size):
            raise ValueError(
                f"position_ids has batch axes {of_positions}, but x has {batch}: they don't match."
            )


def _check_sequence(seq: int | None, n_position: int | None) -> None:
    if None not in (seq, n_position) and seq != n_position:
        raise ValueError(
            f"x has {seq} tokens along its sequence axis, but position_ids has {n_position}. Give one "
            f"position a token."
        )


def _sum_to(x: Tensor, like: Tensor) -> Tensor:
    """Sum ``x`` over the axes along which ``like`` was broadcast, in ``like``'s dtype."""
    surplus = x.ndim - like.ndim
    kept = [
        axis + surplus
        for axis, size in enumerate(like.type.shape)
        if size == 1 and x.type.shape[axis + surplus] != 1
    ]
    if kept:
        x = x.sum(axis=kept, keepdims=True, dtype=x.dtype, acc_dtype=x.dtype)
    if surplus:
        x = x.sum(axis=tuple(range(surplus)), dtype=x.dtype, acc_dtype=x.dtype)
    return cast(Tensor, x.astype(like.dtype))
