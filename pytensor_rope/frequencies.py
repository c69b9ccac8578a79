"""
Frequency schemes: hyper-parameters to the inverse frequencies that positions are multiplied by.

Each scheme is a small frozen dataclass: it compares, hashes and pickles by its values, and prints as the
code that makes it. What a scheme computes is a pure function of its values, of the rotary dimension and base
and, for the schemes that change with it, of the current length: nothing is remembered between calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar, override

import numpy as np

from pytensor_rope.checks import finite_number, positive_number, true_or_false, whole_number

_PRECISION = Context(prec=60)
_TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281")


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
    """

    depends_on_length: ClassVar[bool] = False

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
        return np.array([float(theta) for theta in _exact(self._at(length), rotary_dim, base)])

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


@dataclass(frozen=True, kw_only=True)
class Default(FrequencyScheme):
    r"""
    The plain scheme, :math:`\theta_i = b^{-2i/d}`.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.

    Examples
    --------
    >>> from pytensor_rope.frequencies import Default
    >>> Default().inverse_frequencies(8)
    array([1.   , 0.1  , 0.01 , 0.001])
    """

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return _geometric(d, log_base)


UNSCALED = Default()


@dataclass(frozen=True, kw_only=True)
class Linear(FrequencyScheme):
    r"""
    Position interpolation: every frequency divided by a factor, :math:`\theta_i / s`.

    Parameters
    ----------
    factor : float
        Stretch :math:`s`.

    References
    ----------
    .. [1] Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation",
       arXiv 2306.15595.

    Examples
    --------
    >>> from pytensor_rope.frequencies import Linear
    >>> Linear(factor=4.0).inverse_frequencies(8)
    array([0.25   , 0.025  , 0.0025 , 0.00025])
    """

    factor: float

    def __post_init__(self) -> None:
        self._set("factor", positive_number("factor", self.factor))

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return [theta / Decimal(self.factor) for theta in _geometric(d, log_base)]


@dataclass(frozen=True, kw_only=True)
class NTK(FrequencyScheme):
    r"""
    NTK-aware scaling: the base becomes :math:`b\,s^{d/(d-2)}`.

    The fastest pair is left as it is and the slowest slowed by :math:`s`.

    Parameters
    ----------
    factor : float
        Stretch :math:`s`. Hunyuan's models call it ``alpha``.

    References
    ----------
    .. [1] bloc97, "NTK-Aware Scaled RoPE", 2023.

    Examples
    --------
    >>> from pytensor_rope.frequencies import NTK
    >>> NTK(factor=8.0).inverse_frequencies(8)[:3]
    array([1.    , 0.05  , 0.0025])
    """

    factor: float

    def __post_init__(self) -> None:
        self._set("factor", positive_number("factor", self.factor))

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        _check_ntk_dim(self, rotary_dim)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return _geometric(d, log_base + Decimal(self.factor).ln() * d / (d - 2))


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(FrequencyScheme):
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

    depends_on_length: ClassVar[bool] = True

    factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        self._set("factor", _at_least_1("factor", self.factor))
        _set_original(self)

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        _check_ntk_dim(self, rotary_dim)

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

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        raise NotImplementedError("taken at a length")


@dataclass(frozen=True, kw_only=True)
class YaRN(FrequencyScheme):
    r"""
    YaRN: slow pairs interpolated, fast ones left as they are, and a ramp between them.

    .. math::

        \theta_i' = \frac{\theta_i}{s} r_i + \theta_i (1 - r_i), \qquad
        r_i = \mathrm{clip}\Big(\frac{i - \ell}{h - \ell}, 0, 1\Big)

    with :math:`\ell = c(\beta_\text{fast})`, :math:`h = c(\beta_\text{slow})`,
    :math:`c(n) = d \ln(L / 2\pi n) / (2 \ln b)`, kept between 0 and :math:`d - 1`. Cosines and sines are
    multiplied by ``attention_scaling``: with :math:`g(m) = 1 + 0.1\,m \ln s` (1 for :math:`s \le 1`) it is
    ``attention_factor`` where that is given, else :math:`g(\text{mscale}) / g(\text{mscale\_all\_dim})` where
    both are given and not 0, else :math:`g(1)`.

    Parameters
    ----------
    factor : float
        Stretch :math:`s`.
    original_max_position_embeddings : int
        Length :math:`L` that the model was trained on before it was stretched.
    beta_fast, beta_slow : float, optional
        Turns within :math:`L` from which a pair is left as it is, and up to which it is interpolated.
        Defaults are 32 and 1.
    mscale, mscale_all_dim : float, optional
        DeepSeek's pair of factors on the logarithm.
    attention_factor : float, optional
        ``attention_scaling`` itself, in place of what follows from the factor.
    truncate : bool, optional
        Round :math:`\ell` down and :math:`h` up to whole pairs. Default is True; gpt-oss has False.
    softmax_correction : bool, optional
        Multiply the softmax scale by :math:`g(\text{mscale\_all\_dim})^2`, as DeepSeek's models do. Default
        is False, as in all others.

    References
    ----------
    .. [1] Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071;
       as transformers computes it.

    Examples
    --------
    >>> from pytensor_rope.frequencies import YaRN
    >>> scheme = YaRN(factor=8.0, original_max_position_embeddings=4096)
    >>> round(scheme.attention_scaling, 6)
    1.207944
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    softmax_correction: bool = False

    def __post_init__(self) -> None:
        self._set("factor", positive_number("factor", self.factor))
        _set_original(self)
        for name in ("beta_fast", "beta_slow"):
            self._set(name, positive_number(name, getattr(self, name)))
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast must be at least beta_slow; got {self.beta_fast} and {self.beta_slow}. Are they "
                f"swapped?"
            )
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                self._set(name, _not_negative(name, getattr(self, name)))
        _set_attention_factor(self)
        true_or_false("truncate", self.truncate)
        true_or_false("softmax_correction", self.softmax_correction)

    @property
    @override
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    @override
    def softmax_scaling(self) -> float:
        if not (self.softmax_correction and self.mscale_all_dim):
            return 1.0
        return self._magnitude(self.mscale_all_dim) ** 2

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        if base == 1:
            raise ValueError("YaRN needs a base other than 1: it divides by the base's logarithm.")

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else float(0.1 * mscale * np.log(self.factor) + 1.0)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        low, high = (self._pair_turning(beta, d, log_base) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
        low, high = max(low, Decimal(0)), min(high, Decimal(d - 1))
        if low == high:
            high += Decimal("0.001")
        blended = []
        for i, theta in enumerate(_geometric(d, log_base)):
            ramp = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
            blended.append(theta / Decimal(self.factor) * ramp + theta * (1 - ramp))
        return blended

    def _pair_turning(self, times: float, d: int, log_base: Decimal) -> Decimal:
        """Return which pair, as a fraction, turns so many times within the original length."""
        turns_of_fastest = self.original_max_position_embeddings / (Decimal(times) * _TWO_PI)
        return d * turns_of_fastest.ln() / (2 * log_base)


@dataclass(frozen=True, kw_only=True)
class Llama3(FrequencyScheme):
    r"""
    Llama 3.1's scheme: slow pairs divided by a factor, fast ones left as they are, a blend between them.

    With the wavelength :math:`\lambda_i = 2\pi / \theta_i`, a pair keeps :math:`\theta_i` where
    :math:`\lambda_i < L / \text{high}`, gets :math:`\theta_i / s` where :math:`\lambda_i > L / \text{low}`,
    and :math:`(1 - t)\,\theta_i / s + t\,\theta_i` between,
    :math:`t = (L / \lambda_i - \text{low}) / (\text{high} - \text{low})`.

    Parameters
    ----------
    factor : float
        Stretch :math:`s`.
    low_freq_factor, high_freq_factor : float
        Bounds of the blend, in turns within :math:`L`; the first is below the second.
    original_max_position_embeddings : int
        Length :math:`L` that the model was trained on before it was stretched.

    References
    ----------
    .. [1] Llama Team, "The Llama 3 Herd of Models", arXiv 2407.21783; as transformers computes it.

    Examples
    --------
    >>> from pytensor_rope.frequencies import Llama3
    >>> scheme = Llama3(
    ...     factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ... )
    >>> scheme.inverse_frequencies(64, base=500_000.0)[[0, -1]]
    array([1.00000000e+00, 9.41830673e-08])
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            self._set(name, positive_number(name, getattr(self, name)))
        _set_original(self)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor must be below high_freq_factor; got {self.low_freq_factor} and "
                f"{self.high_freq_factor}."
            )

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        low, high = Decimal(self.low_freq_factor), Decimal(self.high_freq_factor)
        blended = []
        for theta in _geometric(d, log_base):
            turns = self.original_max_position_embeddings * theta / _TWO_PI
            smooth = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
            blended.append(theta * smooth + theta / Decimal(self.factor) * (1 - smooth))
        return blended


@dataclass(frozen=True, kw_only=True)
class FrequencyFactors(FrequencyScheme):
    r"""
    Every frequency divided by a factor of its own, :math:`\theta_i / s_i`.

    GGUF files hold Llama 3's scaling in this form, in the tensor ``rope_freqs.weight``, and LongRoPE's two
    sets in ``rope_factors_short.weight`` and ``rope_factors_long.weight``.

    Parameters
    ----------
    factors : sequence of float
        One :math:`s_i` for each pair of dimensions.
    attention_factor : float, optional
        Factor on cosines and sines. Default is 1.

    Examples
    --------
    >>> from pytensor_rope.frequencies import FrequencyFactors
    >>> FrequencyFactors(factors=[1, 2, 4, 1]).inverse_frequencies(8)
    array([1.    , 0.05  , 0.0025, 0.001 ])
    """

    factors: tuple[float, ...]
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        _set_factors(self, "factors")
        self._set("attention_factor", positive_number("attention_factor", self.attention_factor))

    @property
    @override
    def attention_scaling(self) -> float:
        return self.attention_factor

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        _check_factors("factors", self.factors, rotary_dim)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        plain = _geometric(d, log_base)
        return [theta / Decimal(factor) for theta, factor in zip(plain, self.factors, strict=True)]


@dataclass(frozen=True, kw_only=True)
class LongRoPE(FrequencyScheme):
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

    depends_on_length: ClassVar[bool] = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _set_factors(self, "short_factor")
        _set_factors(self, "long_factor")
        if len(self.short_factor) != len(self.long_factor):
            raise ValueError(
                f"short_factor and long_factor must be equally long; got {len(self.short_factor)} and "
                f"{len(self.long_factor)} factors."
            )
        _set_original(self)
        self._set("factor", positive_number("factor", self.factor))
        _set_attention_factor(self)
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
        _check_factors("short_factor", self.short_factor, rotary_dim)

    @override
    def at(self, length: int) -> FrequencyScheme:
        length = whole_number("length", length, least=1)
        factors = self.long_factor if length > self.original_max_position_embeddings else self.short_factor
        return FrequencyFactors(factors=factors, attention_factor=self.attention_scaling)

    @override
    def same_until(self, length: int) -> int | None:
        original = self.original_max_position_embeddings
        return None if whole_number("length", length, least=1) > original else original

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        raise NotImplementedError("taken at a length")


@dataclass(frozen=True, kw_only=True)
class Proportional(FrequencyScheme):
    r"""
    Gemma 4's partial rotation: pairs of the whole head, of which the first part turns.

    :math:`\theta_i = b^{-2i/d} / s` for the first :math:`\lfloor f d / 2 \rfloor` pairs, 0 for the others,
    with the whole head's :math:`d`. Unlike a smaller ``rotary_dim``, which pairs and divides within the part
    alone.

    Parameters
    ----------
    partial_rotary_factor : float
        Part :math:`f` of the pairs that turns, above 0 and at most 1.
    factor : float, optional
        Stretch :math:`s`. Default is 1.

    References
    ----------
    .. [1] Gemma 4, as transformers computes it ("proportional").

    Examples
    --------
    >>> from pytensor_rope.frequencies import Proportional
    >>> Proportional(partial_rotary_factor=0.5).inverse_frequencies(8)
    array([1. , 0.1, 0. , 0. ])
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("partial_rotary_factor", "factor"):
            self._set(name, positive_number(name, getattr(self, name)))
        if self.partial_rotary_factor > 1:
            raise ValueError(f"partial_rotary_factor must be at most 1; got {self.partial_rotary_factor}.")

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        turning = int(self.partial_rotary_factor * d // 2)
        plain = _geometric(d, log_base)
        return [theta / Decimal(self.factor) if i < turning else Decimal(0) for i, theta in enumerate(plain)]


@dataclass(frozen=True, kw_only=True)
class MRoPE(FrequencyScheme):
    """
    Multimodal rotation: each pair turns with one of several position axes (time, height, width).

    Positions have a leading axis of ``len(section)``. Where all axes agree, as in text, it is the rotation of
    ``scaling``.

    Parameters
    ----------
    section : sequence of int
        Number of pairs that turn with each axis; their sum is ``rotary_dim // 2``.
    interleaved : bool, optional
        False (Qwen2-VL): the first ``section[0]`` pairs follow the first axis, the next the second, and so
        on. True (Qwen3-VL): of every three pairs one follows each axis, as far as its section goes; what is
        left follows the first. Default is False.
    scaling : FrequencyScheme, optional
        Where the frequencies come from; one that doesn't depend on the length. Default is :class:`Default`.

    References
    ----------
    .. [1] Wang et al., "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any
       Resolution", arXiv 2409.12191; the interleaved order as transformers' Qwen3-VL has it.

    Examples
    --------
    >>> from pytensor_rope.frequencies import MRoPE
    >>> MRoPE(section=[2, 1, 1]).axes(8)
    (0, 0, 1, 2)
    >>> MRoPE(section=[2, 1, 1], interleaved=True).axes(8)
    (0, 1, 2, 0)
    """

    section: tuple[int, ...]
    interleaved: bool = False
    scaling: FrequencyScheme = UNSCALED

    def __post_init__(self) -> None:
        if isinstance(self.section, str | Set | Mapping) or not isinstance(self.section, Iterable):
            raise TypeError(f"section must hold one number of pairs an axis; got {self.section!r}.")
        section = tuple(whole_number("A number of pairs in section", n, least=0) for n in self.section)
        if len(section) < 2:
            raise ValueError(f"section must have at least 2 axes; got {len(section)}.")
        self._set("section", section)
        true_or_false("interleaved", self.interleaved)
        if not isinstance(self.scaling, FrequencyScheme):
            raise TypeError(f"scaling must be a frequency scheme; got {self.scaling!r}.")
        if self.scaling.n_axis > 1 or self.scaling.depends_on_length or isinstance(self.scaling, XPos):
            raise ValueError(
                f"scaling must be a scheme of one axis that stays the same at every length; got "
                f"{self.scaling}."
            )

    @property
    @override
    def attention_scaling(self) -> float:
        return self.scaling.attention_scaling

    @property
    @override
    def softmax_scaling(self) -> float:
        return self.scaling.softmax_scaling

    @property
    @override
    def n_axis(self) -> int:
        return len(self.section)

    @property
    @override
    def sequential(self) -> FrequencyScheme:
        return self.scaling

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        self.scaling.check(rotary_dim, base)
        if sum(self.section) != rotary_dim // 2:
            raise ValueError(
                f"section must add up to rotary_dim // 2 = {rotary_dim // 2} pairs; got "
                f"{list(self.section)}, which adds up to {sum(self.section)}."
            )
        if self.interleaved and 0 in [
            self.axes(rotary_dim).count(axis) for axis, n in enumerate(self.section) if n
        ]:
            raise ValueError(f"section {list(self.section)} can't be interleaved: an axis gets no pair.")

    @override
    def axes(self, rotary_dim: int) -> tuple[int, ...]:
        if not self.interleaved:
            return tuple(axis for axis, n in enumerate(self.section) for _ in range(n))
        axes = [0] * (rotary_dim // 2)
        for axis, n in enumerate(self.section[1:], start=1):
            for i in range(axis, min(n * self.n_axis, len(axes)), self.n_axis):
                axes[i] = axis
        return tuple(axes)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return self.scaling._frequencies(d, log_base)


@dataclass(frozen=True, kw_only=True)
class Axial(FrequencyScheme):
    r"""
    Two-dimensional rotation for images: half of the pairs turn with the row, half with the column.

    Positions have a leading axis of 2. The first half of the pairs follows the first position axis.

    Parameters
    ----------
    alternate : bool, optional
        False: each axis has the frequencies of ``rotary_dim // 2`` dimensions, :math:`b^{-4i/d}`
        (Qwen2-VL's and EVA's vision towers). True: the axes take turns in the frequencies of ``rotary_dim``
        dimensions, the even ones for rows, the odd ones for columns (Pixtral). Default is False.

    References
    ----------
    .. [1] Fang et al., "EVA-02: A Visual Representation for Neon Genesis", arXiv 2303.11331.
    .. [2] Agrawal et al., "Pixtral 12B", arXiv 2410.07073.

    Examples
    --------
    >>> from pytensor_rope.frequencies import Axial
    >>> Axial().inverse_frequencies(8)
    array([1.  , 0.01, 1.  , 0.01])
    >>> Axial(alternate=True).inverse_frequencies(8)
    array([1.   , 0.01 , 0.1  , 0.001])
    >>> Axial().axes(8)
    (0, 0, 1, 1)
    """

    alternate: bool = False

    def __post_init__(self) -> None:
        true_or_false("alternate", self.alternate)

    @property
    @override
    def n_axis(self) -> int:
        return 2

    @property
    @override
    def sequential(self) -> FrequencyScheme:
        raise ValueError("Axial turns by rows and columns: a sequence of tokens has neither.")

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        if rotary_dim % 4:
            raise ValueError(
                f"Axial needs a rotary_dim divisible by 4, for two axes of pairs; got {rotary_dim}."
            )

    @override
    def axes(self, rotary_dim: int) -> tuple[int, ...]:
        return (0,) * (rotary_dim // 4) + (1,) * (rotary_dim // 4)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        if self.alternate:
            plain = _geometric(d, log_base)
            return plain[0::2] + plain[1::2]
        return _geometric(d // 2, log_base) * 2


@dataclass(frozen=True, kw_only=True)
class XPos(FrequencyScheme):
    r"""
    xPos: the plain rotation, and a decay with distance.

    Queries at position :math:`p` are also multiplied by :math:`\zeta_i^{p/B}` and keys divided by it,
    :math:`\zeta_i = (2i + 0.4 d) / 1.4 d`, so that a score decays with the distance alone. The factors
    themselves leave float32's range at positions around :math:`70 B`; a :class:`~pytensor_rope.SinkCache`
    takes them from nearer positions, and has no such bound.

    Parameters
    ----------
    scale_base : float, optional
        Distance :math:`B` over which :math:`\zeta_i` is the decay. Default is 512.

    References
    ----------
    .. [1] Sun et al., "A Length-Extrapolatable Transformer", arXiv 2212.10554.

    Examples
    --------
    >>> from pytensor_rope.frequencies import XPos
    >>> XPos().log_decay(8).round(6)
    array([-0.002447, -0.001499, -0.000863, -0.000384])
    """

    scale_base: float = 512.0

    def __post_init__(self) -> None:
        self._set("scale_base", positive_number("scale_base", self.scale_base))

    def log_decay(self, rotary_dim: int) -> np.ndarray:
        """Return the logarithm of each pair's decay a position, ``(rotary_dim // 2,)``, float64."""
        d = check_rotary_dim(rotary_dim)
        zeta: np.ndarray = np.log((np.arange(0, d, 2) + 0.4 * d) / (1.4 * d)) / self.scale_base
        return zeta

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return _geometric(d, log_base)


SCHEMES: dict[str, type[FrequencyScheme]] = {
    scheme.__name__: scheme
    for scheme in (
        Default,
        Linear,
        NTK,
        DynamicNTK,
        YaRN,
        Llama3,
        FrequencyFactors,
        LongRoPE,
        Proportional,
        MRoPE,
        Axial,
        XPos,
    )
}

# Short names of the schemes that a single number describes.
SCALINGS = ("none", "linear", "ntk")


def scheme_from_plain(plain: Sequence[Any]) -> FrequencyScheme:
    """Return the scheme that :meth:`FrequencyScheme.plain` took apart, lists in place of tuples or not."""
    name, *values = plain
    arguments = {
        key: scheme_from_plain(value) if key == "scaling" else value  # MRoPE's, the one scheme in a scheme.
        for key, value in values
    }
    return SCHEMES[name](**arguments)


def resolve_scaling(scaling: object, scaling_factor: float = 1.0) -> FrequencyScheme:
    """Return the scheme that ``scaling`` is or names, refusing a factor that would have no effect."""
    factor = positive_number("scaling_factor", scaling_factor)
    if isinstance(scaling, FrequencyScheme):
        if factor != 1:
            raise ValueError(
                f"scaling_factor={scaling_factor!r} has no effect beside scaling={scaling!r}, which has its "
                f"own: leave scaling_factor out."
            )
        return scaling
    if scaling == "linear":
        return Linear(factor=factor)
    if scaling == "ntk":
        return NTK(factor=factor)
    if scaling != "none":
        raise ValueError(
            f"scaling must be one of {', '.join(SCALINGS)} or a scheme of pytensor_rope.frequencies; got "
            f"{scaling!r}."
        )
    if factor != 1:
        raise ValueError(
            f'scaling_factor={scaling_factor!r} has no effect with scaling="none". Pass '
            f'scaling="linear" or scaling="ntk", or leave scaling_factor out.'
        )
    return Default()


def inverse_frequencies(
    rotary_dim: int,
    *,
    base: float = 10_000.0,
    scaling: str | FrequencyScheme = "none",
    scaling_factor: float = 1.0,
    length: int | None = None,
) -> np.ndarray:
    r"""
    Return the inverse frequencies :math:`\theta_i`, in radians a position.

    Parameters
    ----------
    rotary_dim : int
        Number of rotated dimensions, even.
    base : float, optional
        Base of the geometric sequence, often called theta. Default is 10000.
    scaling : {"none", "linear", "ntk"} or FrequencyScheme, optional
        How the sequence is stretched: a scheme of :mod:`pytensor_rope.frequencies`, or the short name of
        :class:`~pytensor_rope.frequencies.Default`, :class:`~pytensor_rope.frequencies.Linear` or
        :class:`~pytensor_rope.frequencies.NTK`. Default is "none".
    scaling_factor : float, optional
        Stretch; only with ``"linear"`` or ``"ntk"``. Default is 1.
    length : int, optional
        Length of the sequence, for schemes that depend on it.

    Returns
    -------
    numpy.ndarray
        Shape ``(rotary_dim // 2,)``, float64, each correctly rounded.

    Raises
    ------
    ValueError
        If a hyper-parameter is out of range or ``scaling`` is unknown, or needs a ``length``.
    TypeError
        If ``rotary_dim`` or ``length`` is no integer, or ``base`` or ``scaling_factor`` no number.

    Examples
    --------
    >>> from pytensor_rope import inverse_frequencies
    >>> inverse_frequencies(8, base=10_000.0)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    scheme = resolve_scaling(scaling, scaling_factor)
    return scheme.inverse_frequencies(rotary_dim, base=base, length=length)


def turns(scheme: FrequencyScheme, rotary_dim: int, base: float, *, bits: int) -> list[int]:
    """Return each inverse frequency in turns a position, as a fraction of ``2**bits``, whole turns gone."""
    exact = _exact(scheme, rotary_dim, base)
    with localcontext(_PRECISION):
        return [int((theta / _TWO_PI * 2**bits).to_integral_value()) % 2**bits for theta in exact]


def check_rotary_dim(rotary_dim: object, name: str = "rotary_dim") -> int:
    """Return ``rotary_dim`` as an int, refusing what can't be split into pairs."""
    d = whole_number(name, rotary_dim, least=2)
    if d % 2:
        raise ValueError(
            f"{name} must be even, since dimensions are rotated in pairs; got {d}. Pass an even "
            f"rotary_dim to rotate part of the head."
        )
    return d


def _exact(scheme: FrequencyScheme, rotary_dim: int, base: float) -> tuple[Decimal, ...]:
    """Return the inverse frequencies to 60 digits: float64 would lose a turn's fraction far out."""
    scheme.check(rotary_dim, base)
    return _cached(scheme, int(rotary_dim), float(base))


@lru_cache(maxsize=256)
def _cached(scheme: FrequencyScheme, d: int, base: float) -> tuple[Decimal, ...]:
    with localcontext(_PRECISION):
        return tuple(scheme._frequencies(d, Decimal(base).ln()))


def _geometric(d: int, log_base: Decimal) -> list[Decimal]:
    return [(log_base * -2 * i / d).exp() for i in range(d // 2)]


def _at_least_1(name: str, value: object) -> float:
    number = positive_number(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1; got {value!r}.")
    return number


def _not_negative(name: str, value: object) -> float:
    number = finite_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0; got {value!r}.")
    return number


def _check_ntk_dim(scheme: FrequencyScheme, rotary_dim: int) -> None:
    if rotary_dim == 2:
        raise ValueError(f"{type(scheme).__name__} needs a rotary_dim above 2: its exponent is d / (d - 2).")


def _check_factors(name: str, factors: tuple[float, ...], rotary_dim: int) -> None:
    if len(factors) != rotary_dim // 2:
        raise ValueError(
            f"{name} must have one factor a pair, rotary_dim // 2 = {rotary_dim // 2}; got {len(factors)}."
        )


def _set_original(scheme: Any) -> None:
    name = "original_max_position_embeddings"
    value = whole_number(name, getattr(scheme, name), least=1)
    if value >= 2**63:
        raise ValueError(f"{name} must be below 2**63, as positions are; got {value}.")
    scheme._set(name, value)


def _set_attention_factor(scheme: Any) -> None:
    if scheme.attention_factor is not None:
        scheme._set("attention_factor", positive_number("attention_factor", scheme.attention_factor))


def _set_factors(scheme: Any, name: str) -> None:
    given = getattr(scheme, name)
    if isinstance(given, str | Set | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must hold one factor a pair of dimensions; got {given!r}.")
    scheme._set(name, tuple(positive_number(f"A factor in {name}", factor) for factor in given))
