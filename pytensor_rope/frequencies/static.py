"""Schemes whose frequencies are the same at every length."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import override

import numpy as np

from pytensor_rope.checks import not_negative, positive_number, true_or_false
from pytensor_rope.frequencies.base import TWO_PI, FrequencyScheme, geometric
from pytensor_rope.frequencies.fields import (
    check_factors,
    check_ntk_dim,
    set_attention_factor,
    set_factors,
    set_original,
)


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
        return geometric(d, log_base)


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
        return [theta / Decimal(self.factor) for theta in geometric(d, log_base)]


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
        check_ntk_dim(self, rotary_dim)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return geometric(d, log_base + Decimal(self.factor).ln() * d / (d - 2))


@dataclass(frozen=True, kw_only=True)
class YaRN(FrequencyScheme):
    r"""
    YaRN: slow pairs interpolated, fast ones left as they are, and a ramp between them.

    .. math::

        \theta_i' = \frac{\theta_i}{s} r_i + \theta_i (1 - r_i), \qquad
        r_i = \mathrm{clip}\Big(\frac{i - \ell}{h - \ell}, 0, 1\Big)

    with :math:`\ell = c(\beta_\text{fast})`, :math:`h = c(\beta_\text{slow})`,
    :math:`c(n) = d \ln(L / 2\pi n) / (2 \ln b)`; :math:`\ell` is at least 0 and :math:`h` at most
    :math:`d - 1`. Cosines and sines are multiplied by ``attention_scaling``: with
    :math:`g(m) = 1 + 0.1\,m \ln s` (1 for :math:`s \le 1`) it is ``attention_factor`` where that is
    given, else :math:`g(\text{mscale}) / g(\text{mscale\_all\_dim})` where both are given and not 0, else
    :math:`g(1)`.

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
        set_original(self)
        for name in ("beta_fast", "beta_slow"):
            self._set(name, positive_number(name, getattr(self, name)))
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast must be at least beta_slow; got {self.beta_fast} and {self.beta_slow}. Are they "
                f"swapped?"
            )
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                self._set(name, not_negative(name, getattr(self, name)))
        set_attention_factor(self)
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
        for i, theta in enumerate(geometric(d, log_base)):
            ramp = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
            blended.append(theta / Decimal(self.factor) * ramp + theta * (1 - ramp))
        return blended

    def _pair_turning(self, times: float, d: int, log_base: Decimal) -> Decimal:
        """Return which pair, as a fraction, turns so many times within the original length."""
        turns_of_fastest = self.original_max_position_embeddings / (Decimal(times) * TWO_PI)
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
        set_original(self)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor must be below high_freq_factor; got {self.low_freq_factor} and "
                f"{self.high_freq_factor}."
            )

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        low, high = Decimal(self.low_freq_factor), Decimal(self.high_freq_factor)
        blended = []
        for theta in geometric(d, log_base):
            turns = self.original_max_position_embeddings * theta / TWO_PI
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
        set_factors(self, "factors")
        self._set("attention_factor", positive_number("attention_factor", self.attention_factor))

    @property
    @override
    def attention_scaling(self) -> float:
        return self.attention_factor

    @override
    def check(self, rotary_dim: int, base: float) -> None:
        super().check(rotary_dim, base)
        check_factors("factors", self.factors, rotary_dim)

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        plain = geometric(d, log_base)
        return [theta / Decimal(factor) for theta, factor in zip(plain, self.factors, strict=True)]


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
        plain = geometric(d, log_base)
        return [theta / Decimal(self.factor) if i < turning else Decimal(0) for i, theta in enumerate(plain)]
