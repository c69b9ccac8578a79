"""Choosing the next token from its logits, on the host."""

import math

import numpy as np
import numpy.typing as npt


class Sampler:
    r"""
    Draw token ids from logits.

    The distribution is that of ``softmax(logits / temperature)``, cut to the ``top_k`` most
    probable tokens and then to the fewest most probable ones that hold at least ``top_p`` of what
    is left, in float64. The token drawn is the Gumbel-max one,

    .. math:: \arg\max_i \left( \ell_i / T - \log(-\log u_i) \right),

    with one uniform :math:`u_i` for each token of the vocabulary, whether cut or not. Two backends
    whose logits differ by float noise then draw different tokens only when the two best sums are
    closer than that noise, however large the vocabulary is; inverting the cumulative distribution
    would shift every token behind the noisy one.

    Parameters
    ----------
    temperature : float, optional
        0 takes the most probable token, the first of equals, and ignores the other parameters.
        Default is 0.
    top_k : int, optional
        How many of the most probable tokens to keep; of equals, those with smaller ids. Default
        is None, all.
    top_p : float, optional
        Probability to keep, in (0, 1]. Default is None, all.
    seed : int, optional
        Seed of the PCG64 generator. Default is None, another stream each time.

    Raises
    ------
    ValueError
        If a parameter is outside its range, naming it.

    References
    ----------
    Maddison, Tarlow and Minka, "A* Sampling", 2014, arXiv 1411.0030 (section 2).

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_rope.sampling import Sampler
    >>> Sampler()(np.array([0.5, 2.0, -1.0]))
    1
    >>> Sampler(temperature=1.0, top_k=2).probabilities(np.log([0.5, 0.25, 0.25])).round(4).tolist()
    [0.6667, 0.3333, 0.0]
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        if not _is_number(temperature) or not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be finite and at least 0; got {temperature!r}.")
        if top_k is not None and (not _is_integer(top_k) or top_k < 1):
            raise ValueError(f"top_k must be an integer of at least 1, or None; got {top_k!r}.")
        if top_p is not None and (not _is_number(top_p) or not 0 < top_p <= 1):
            raise ValueError(f"top_p must be in (0, 1], or None; got {top_p!r}.")
        if seed is not None and (not _is_integer(seed) or seed < 0):
            raise ValueError(f"seed must be an integer of at least 0, or None; got {seed!r}.")
        self._temperature = float(temperature)
        self._top_k = top_k
        # Rounded sums must not cut anything when everything is to be kept.
        self._top_p = None if top_p == 1 else top_p
        self._generator = np.random.Generator(np.random.PCG64(seed))

    @property
    def temperature(self) -> float:
        """What logits are divided by before noise is added: 1 where there is no noise."""
        return self._temperature or 1.0

    @property
    def cuts(self) -> bool:
        """Whether it chooses from some tokens only."""
        return self._temperature > 0 and (self._top_k is not None or self._top_p is not None)

    def noise(self, n: int, vocab_size: int) -> npt.NDArray[np.float64]:
        """Return what the next ``n`` draws add to logits over the temperature, ``(n, vocab_size)``."""
        if self._temperature == 0:
            return np.zeros((n, vocab_size))
        return _gumbel(self._generator.random((n, vocab_size)))

    def __call__(self, logits: npt.ArrayLike) -> int:
        """
        Return the next token id.

        Parameters
        ----------
        logits : array_like
            Shape ``(vocab,)``, any float dtype. ``-inf`` excludes a token.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            If logits have another shape, hold NaN or ``inf``, or exclude every token.
        """
        scores = _checked(logits)
        if self._temperature == 0:
            return int(scores.argmax())
        scores = self._kept_scores(scores)
        uniform = self._generator.random(scores.size)
        kept = np.flatnonzero(scores > -np.inf)
        return int(kept[np.argmax(scores[kept] + _gumbel(uniform[kept]))])

    def probabilities(self, logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """
        Return the distribution that tokens are drawn from.

        Parameters
        ----------
        logits : array_like
            Shape ``(vocab,)``, as for a draw.

        Returns
        -------
        ndarray of float64
            Shape ``(vocab,)``, with sum 1 and zeros for what is cut.

        Raises
        ------
        ValueError
            As for a draw.
        """
        scores = _checked(logits)
        if self._temperature == 0:
            one_hot = np.zeros_like(scores)
            one_hot[scores.argmax()] = 1.0
            return one_hot
        return _softmax(self._kept_scores(scores))

    def _kept_scores(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        with np.errstate(over="ignore"):  # -inf is right for what a tiny temperature rules out
            scores: npt.NDArray[np.float64] = (logits - logits.max()) / self._temperature
        if self._top_k is not None and self._top_k < scores.size:
            scores = _only(scores, _most_probable(scores, self._top_k))
        if self._top_p is not None:
            scores = _only(scores, _nucleus(_softmax(scores), self._top_p))
        return scores


def _gumbel(uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return Gumbel noise made of uniform numbers from 0 to 1; 0 counts as the smallest number above it."""
    noise: npt.NDArray[np.float64] = -np.log(-np.log(np.maximum(uniform, np.finfo(np.float64).tiny)))
    return noise


def _most_probable(scores: npt.NDArray[np.float64], k: int) -> npt.NDArray[np.intp]:
    last = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > last)
    equal = np.flatnonzero(scores == last)
    return np.concatenate([above, equal[: k - above.size]])


def _nucleus(probabilities: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.intp]:
    # All that are rarer than this hold less than 1 - top_p together: they need no sorting.
    candidates = np.flatnonzero(probabilities >= (1 - top_p) / probabilities.size)
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    before = np.cumsum(probabilities[order]) - probabilities[order]
    before[0] = 0.0
    return order[before < top_p]


def _only(scores: npt.NDArray[np.float64], kept: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    cut = np.full_like(scores, -np.inf)
    cut[kept] = scores[kept]
    return cut


def _checked(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    scores = np.asarray(logits, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"logits must have the shape (vocab,); got {scores.shape}.")
    check_highest(scores.max())
    return scores


def check_highest(highest: float) -> None:
    """Refuse logits by their maximum, which is NaN if any is NaN."""
    if not np.isfinite(highest):
        raise ValueError(f"logits must be finite, or -inf to exclude a token; their maximum is {highest}.")


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    return weights / weights.sum()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
