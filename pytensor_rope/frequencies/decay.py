"""Rotation with a decay."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, override

import numpy as np

from pytensor_rope.checks import positive_number
from pytensor_rope.frequencies.base import FrequencyScheme, check_rotary_dim, geometric


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

    caches_rotated_keys: ClassVar[bool] = False

    scale_base: float = 512.0

    def __post_init__(self) -> None:
        self._set("scale_base", positive_number("scale_base", self.scale_base))
        if self.scale_base < 1:
            raise ValueError(f"scale_base must be at least 1, a distance; got {self.scale_base}.")

    @override
    def log_decay(self, rotary_dim: int) -> np.ndarray:
        d = check_rotary_dim(rotary_dim)
        log_zeta: np.ndarray = np.log((np.arange(0, d, 2) + 0.4 * d) / (1.4 * d))
        return log_zeta / self.scale_base

    def _frequencies(self, d: int, log_base: Decimal) -> list[Decimal]:
        return geometric(d, log_base)
