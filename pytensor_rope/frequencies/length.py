"""Schemes whose frequencies follow the length of the sequence."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, override

import numpy as np

from pytensor_rope.checks import at_least_1, positive_number, whole_number
from pytensor_rope.frequencies.base import FrequencyScheme
from pytensor_rope.frequencies.fields import (
    check_factors,
    check_ntk_dim,
    set_attention_factor,
    set_factors,
    set_original,
)
from pytensor_rope.frequencies.static import NTK, Default, FrequencyFactors


@dataclass(frozen=True, kw_only=True)
class LengthDependent(FrequencyScheme):
    """
    A scheme that is another one, of static frequencies, at each length: see :meth:`at`.

    Parameters
    ----------
    original_max_position_embeddings : int
        Length beyond which the frequencies change.
    """

    depends_on_length: ClassVar[bool] = True
    caches_rotated_keys: ClassVar[bool] = False

    original_max_position_embeddings: int

    @override
    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        raise NotImplementedError("taken at a length")


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(LengthDependent):
    r"""
    NTK-aware scaling by as much as the current length needs.

    At a length :math:`n > L` the frequencies are those of :class:`NTK` with
    :math:`s\,n / L - (s - 1)` for its factor; at :math:`n \le L` they are the plain ones, exactly.

    Parameters
    ----------
    factor : float
        Stretch :math:`s`, at least 1.
    original_max_position_embeddings : int
        Length :math:`L` beyond which the base grows; Hugging Face takes ``max_position_embeddings``.

    References
    ----------
    .. [1] emozilla, "Dynamically Scaled RoPE further increases performance of long context LLaMA", 2023;
       as transformers computes it for a fresh model.

    Examples
    --------
    >>> from pytensor_rope.frequencies import DynamicNTK
    >>> scheme = DynamicNTK(factor=2.0, original_max_position_embeddings=4096)
    >>> scheme.at(4096), scheme.at(8192)
    (Default(), NTK(factor=3.0))
    """

    factor: float

    def __post_init__(self) -> None:
        self._set("factor", at_least_1("factor", self.factor))
        set_original(self)

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        check_ntk_dim(self, rotary_dim)

    @override
    def at(self, length: int) -> FrequencyScheme:
        length = whole_number("length", length, least=1)
        original = self.original_max_position_embeddings
        if length <= original:
            return Default()
        return NTK(factor=self.factor * positive_number("length", length) / original - (self.factor - 1))

    @override
    def same_until(self, length: int) -> int | None:
        return max(whole_number("length", length, least=1), self.original_max_position_embeddings)


@dataclass(frozen=True, kw_only=True)
class LongRoPE(LengthDependent):
    r"""
    LongRoPE, early Phi-3's ``su``: one factor a pair, of two sets, chosen by the current length.

    At a length :math:`n > L` the frequencies are those of :class:`FrequencyFactors` with ``long_factor``, at
    :math:`n \le L` with ``short_factor``. The attention factor holds for both.

    Parameters
    ----------
    short_factor, long_factor : sequence of float
        One factor for each pair of dimensions.
    original_max_position_embeddings : int
        Length :math:`L` at which the sets change.
    factor : float, optional
        How far the model was stretched, usually ``max_position_embeddings / L``: the attention factor is
        :math:`\sqrt{1 + \ln s / \ln L}`, or 1 where :math:`s \le 1`. Default is 1.
    attention_factor : float, optional
        Factor on cosines and sines, in place of what follows from ``factor``.

    References
    ----------
    .. [1] Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv 2402.13753;
       as transformers computes it.

    Examples
    --------
    >>> from pytensor_rope.frequencies import LongRoPE
    >>> scheme = LongRoPE(
    ...     short_factor=[1, 1],
    ...     long_factor=[1, 10],
    ...     original_max_position_embeddings=4096,
    ...     factor=32.0,
    ... )
    >>> round(scheme.attention_scaling, 6)
    1.190238
    >>> scheme.inverse_frequencies(4, length=4096)
    array([1.  , 0.01])
    >>> scheme.inverse_frequencies(4, length=4097)
    array([1.   , 0.001])
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        set_factors(self, "short_factor")
        set_factors(self, "long_factor")
        if len(self.short_factor) != len(self.long_factor):
            raise ValueError(
                f"short_factor and long_factor must be equally long; got {len(self.short_factor)} and "
                f"{len(self.long_factor)} factors."
            )
        set_original(self)
        self._set("factor", positive_number("factor", self.factor))
        set_attention_factor(self)
        if self.attention_factor is None and self.factor > 1 and self.original_max_position_embeddings == 1:
            raise ValueError(
                "original_max_position_embeddings must be above 1 for an attention factor to be derived: "
                "pass attention_factor."
            )

    @property
    @override
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return float(np.sqrt(1 + np.log(self.factor) / np.log(self.original_max_position_embeddings)))

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        check_factors("short_factor", self.short_factor, rotary_dim)

    @override
    def at(self, length: int) -> FrequencyScheme:
        length = whole_number("length", length, least=1)
        factors = self.long_factor if length > self.original_max_position_embeddings else self.short_factor
        return FrequencyFactors(factors=factors, attention_factor=self.attention_scaling)

    @override
    def same_until(self, length: int) -> int | None:
        original = self.original_max_position_embeddings
        return None if whole_number("length", length, least=1) > original else original
