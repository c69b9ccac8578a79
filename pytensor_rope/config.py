"""The hyper-parameters of a decoder: sizes and constants, no weights."""

from dataclasses import dataclass

from pytensor_rope.checks import positive_number, whole_number
from pytensor_rope.frequencies import UNSCALED, FrequencyScheme, resolve_scaling
from pytensor_rope.rotary import RotaryEmbedding


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """
    Hyper-parameters of a Llama-family decoder.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    hidden_size : int
        Width of the residual stream.
    intermediate_size : int
        Width of the gated feed-forward network.
    n_layer : int
        Number of decoder layers.
    n_head : int
        Number of query heads.
    n_kv_head : int
        Number of key/value heads. Divides ``n_head``; each serves ``n_head // n_kv_head`` consecutive
        query heads.
    head_dim : int
        Width of one head.
    context_length : int
        Number of positions the model was trained on. A stream may run past it.
    epsilon : float, optional
        Constant under the root of every RMSNorm. Default is 1e-5.
    tied : bool, optional
        Whether the output head is the token embedding. Default is False.
    base, pairing, scaling, rotary_dim
        Rotary hyper-parameters, as :class:`~pytensor_rope.RotaryEmbedding` takes them. ``scaling`` is a
        scheme of :mod:`pytensor_rope.frequencies`.

    Raises
    ------
    ValueError
        If a size or ``epsilon`` is not positive, if ``n_kv_head`` does not divide ``n_head``, or if
        :class:`~pytensor_rope.RotaryEmbedding` refuses the rotary hyper-parameters.
    TypeError
        If a size is no integer or ``epsilon`` no number.

    Examples
    --------
    >>> from pytensor_rope import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=256,
    ...     hidden_size=32,
    ...     intermediate_size=64,
    ...     n_layer=2,
    ...     n_head=4,
    ...     n_kv_head=2,
    ...     head_dim=8,
    ...     context_length=128,
    ... )
    >>> config.n_head // config.n_kv_head
    2
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    context_length: int
    epsilon: float = 1e-5
    tied: bool = False
    base: float = 10_000.0
    pairing: str = "half"
    scaling: FrequencyScheme = UNSCALED
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "n_layer",
            "n_head",
            "n_kv_head",
            "head_dim",
            "context_length",
        ):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))
        if self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_kv_head must divide n_head, so that every key/value head serves the same number of "
                f"query heads; got n_kv_head={self.n_kv_head} and n_head={self.n_head}."
            )
        positive_number("epsilon", self.epsilon)
        object.__setattr__(self, "scaling", resolve_scaling(self.scaling))
        self.rotary()

    def rotary(self) -> RotaryEmbedding:
        """Return the rotary embedding that this decoder's attention uses."""
        return RotaryEmbedding(
            head_dim=self.head_dim,
            base=self.base,
            pairing=self.pairing,
            scaling=self.scaling,
            rotary_dim=self.rotary_dim,
        )
