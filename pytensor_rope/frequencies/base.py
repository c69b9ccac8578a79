"""What every frequency scheme is, and the arithmetic that makes its frequencies exact."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from pytensor_rope.checks import positive_number, whole_number

# Far more than any head has, and few enough for 60 digits of each to take no time.
_MOST_DIMENSIONS = 2**16

_PRECISION = Context(prec=60)
TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281")


@dataclass(frozen=True, kw_only=True)
class FrequencyScheme(ABC):
    """
    How inverse frequencies come from a rotary dimension and a base.

    Attributes
    ----------
    attention_scaling : float
        Factor on cosines and sines, so on rotated queries and keys alike. 1 for most schemes.
    softmax_scaling : float
        Factor on the softmax scale, beside ``1 / sqrt(head_dim)``. 1 for most schemes.
    n_axis : int
        Number of position axes: 1 for text.
    depends_on_length : bool
        Whether the frequencies change with the length of the sequence.
    caches_rotated_keys : bool
        Whether a key that was rotated once stays right, however long the sequence becomes. If not, a cache
        keeps keys as they were and rotates them when it reads.
    """

    depends_on_length: ClassVar[bool] = False
    caches_rotated_keys: ClassVar[bool] = True

    @property
    def attention_scaling(self) -> float:
        """Factor on cosines and sines."""
        return 1.0

    @property
    def softmax_scaling(self) -> float:
        """Factor on the softmax scale."""
        return 1.0

    @property
    def n_axis(self) -> int:
        """Number of position axes."""
        return 1

    def inverse_frequencies(
        self, rotary_dim: int, *, base: float = 10_000.0, length: int | None = None
    ) -> np.ndarray:
        """
        Return the inverse frequencies, in radians a position.

        Parameters
        ----------
        rotary_dim : int
            Number of rotated dimensions, even.
        base : float, optional
            Base of the geometric sequence, often called theta. Default is 10000.
        length : int, optional
            Length of the sequence, for schemes that depend on it.

        Returns
        -------
        numpy.ndarray
            Shape ``(rotary_dim // 2,)``, float64, each correctly rounded.

        Raises
        ------
        ValueError
            If the scheme gives no frequencies for ``rotary_dim`` or ``base``, or needs a ``length``.
        TypeError
            If ``rotary_dim`` or ``length`` is no integer, or ``base`` no number.
        """
        self.check(rotary_dim, base)
        return np.array([float(theta) for theta in exact(self._at(length), rotary_dim, base)])

    def check(self, rotary_dim: int, base: float) -> None:
        """Refuse a ``rotary_dim`` or ``base`` for which there are no frequencies."""
        check_rotary_dim(rotary_dim)
        positive_number("base", base)

    def at(self, length: int) -> "FrequencyScheme":
        """
        Return the scheme that gives the same frequencies at every length as this one at ``length``.

        Keys rotated by it stay right however long the sequence becomes; vLLM and llama.cpp choose the
        frequencies of :class:`LongRoPE` in this way, once for a run.
        """
        whole_number("length", length, least=1)
        return self

    def same_until(self, length: int) -> int | None:
        """Return the greatest length with the frequencies of ``length``, None where there is none."""
        whole_number("length", length, least=1)
        return None

    def log_decay(self, rotary_dim: int) -> np.ndarray | None:
        """
        Return the logarithm of each pair's decay with the position, None where nothing decays.

        Queries are multiplied and keys divided by the decay, ``(rotary_dim // 2,)``, float64.
        """
        return None

    def axes(self, rotary_dim: int) -> tuple[int, ...]:
        """Return which position axis turns each pair of dimensions."""
        return (0,) * (rotary_dim // 2)

    @property
    def sequential(self) -> "FrequencyScheme":
        """The scheme for positions along one axis, as text has them."""
        return self

    def plain(self) -> tuple[Any, ...]:
        """Return the scheme as a tuple of plain values, which any file format can hold."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return (
            type(self).__name__,
            *(
                (name, value.plain() if isinstance(value, FrequencyScheme) else value)
                for name, value in pairs
            ),
        )

    def _at(self, length: int | None) -> "FrequencyScheme":
        if length is not None:
            return self.at(length)
        if self.depends_on_length:
            raise ValueError(
                f"The frequencies of {type(self).__name__} depend on the length of the sequence: pass length."
            )
        return self

    @abstractmethod
    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        """Return the inverse frequencies of ``d`` dimensions; the decimal context is set."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def turns(scheme: FrequencyScheme, rotary_dim: int, base: float, *, bits: int) -> list[int]:
    """Return each inverse frequency in turns a position, as a fraction of ``2**bits``, whole turns gone."""
    thetas = exact(scheme, rotary_dim, base)
    with localcontext(_PRECISION):
        return [int((theta / TWO_PI * 2**bits).to_integral_value()) % 2**bits for theta in thetas]


def check_rotary_dim(rotary_dim: object, name: str = "rotary_dim") -> int:
    """Return ``rotary_dim`` as an int, refusing what can't be split into pairs."""
    d = whole_number(name, rotary_dim, least=2)
    if d > _MOST_DIMENSIONS:
        raise ValueError(f"{name} must be at most {_MOST_DIMENSIONS}; got {rotary_dim!r:.40}.")
    if d % 2:
        raise ValueError(
            f"{name} must be even, since dimensions are rotated in pairs; got {d}. Pass an even "
            f"rotary_dim to rotate part of the head."
        )
    return d


def exact(scheme: FrequencyScheme, rotary_dim: int, base: float) -> tuple[Decimal, ...]:
    """Return the inverse frequencies to 60 digits: float64 would lose a turn's fraction far out."""
    scheme.check(rotary_dim, base)
    return _cached(scheme, int(rotary_dim), float(base))


@lru_cache(maxsize=256)
def _cached(scheme: FrequencyScheme, d: int, base: float) -> tuple[Decimal, ...]:
    with localcontext(_PRECISION):
        thetas = tuple(scheme._frequencies(d, Decimal(base).ln()))
    if not all(math.isfinite(theta) for theta in thetas):
        raise ValueError(f"{scheme} with base={base} gives frequencies that no float64 holds.")
    return thetas


def geometric(d: int, log_base: Decimal) -> list[Decimal]:
    """Return the plain inverse frequencies of ``d`` dimensions; the decimal context is set."""
    return [(log_base * -2 * i / d).exp() for i in range(d // 2)]
