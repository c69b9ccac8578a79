"""Schemes of several position axes, for images and video."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import override

from pytensor_rope.checks import true_or_false, whole_number
from pytensor_rope.frequencies.base import FrequencyScheme, geometric
from pytensor_rope.frequencies.static import UNSCALED


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
        if self.scaling.n_axis > 1 or not self.scaling.caches_rotated_keys:
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
            plain = geometric(d, log_base)
            return plain[0::2] + plain[1::2]
        return geometric(d // 2, log_base) * 2
