"""The hyper-parameters of a decoder: sizes, constants and how its layers are put together, no weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor_rope.checks import one_of, positive_number, true_or_false, whole_number
from pytensor_rope.frequencies import UNSCALED, FrequencyScheme, resolve_scaling
from pytensor_rope.rotary import RotaryEmbedding

NORMS = ("rms", "layer")
NORM_PLACEMENTS = ("before", "after", "both")
RESIDUALS = ("sequential", "parallel")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
QK_NORMS = ("head", "heads", "width")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    r"""
    Hyper-parameters of a decoder.

    The defaults are those of the Llama family: RMSNorm before the attention and before the gated
    feed-forward network, each added to what came in, no biases, and every head rotated in full.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    hidden_size : int
        Width of the residual stream.
    intermediate_size : int
        Width of the feed-forward network.
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
        Constant under the root of every norm. Default is 1e-5.
    tied : bool, optional
        Whether the output head is the token embedding. Default is False.
    base, pairing, scaling, rotary_dim
        Rotary hyper-parameters, as :class:`~pytensor_rope.RotaryEmbedding` takes them. ``scaling`` is a
        scheme of :mod:`pytensor_rope.frequencies`.
    norm : {"rms", "layer"}, optional
        Kind of every norm: root mean square, or LayerNorm, which subtracts the mean first. Default is "rms".
    norm_bias : bool, optional
        Whether every norm adds a bias. Default is False.
    unit_offset : bool, optional
        Whether an RMSNorm's scale is 1 + weight, as Gemma's is. Default is False.
    norm_placement : {"before", "after", "both"}, optional
        Whether what goes into the attention and into the feed-forward network is normalised, or what comes
        out of them before it is added, or both. Default is "before".
    residual : {"sequential", "parallel"}, optional
        Whether the feed-forward network reads what the attention has been added to, or what the attention
        reads. Default is "sequential".
    shared_norm : bool, optional
        Whether attention and feed-forward network share one norm before them, in a parallel residual.
        Default is False.
    activation : {"silu", "gelu", "gelu_tanh", "relu"}, optional
        The feed-forward network's, "gelu" being exact and "gelu_tanh" its approximation. Default is "silu".
    gated : bool, optional
        Whether the activation of one projection multiplies another. Default is True.
    qkv_bias, output_bias, feed_forward_bias, head_bias : bool, optional
        Whether the projections of queries, keys and values, the attention's output projection, the
        feed-forward network's projections and the output head add a bias. Default is False.
    qk_norm : {"head", "heads", "width"}, optional
        What queries and keys are normalised over before they are rotated: each head with weights that all
        heads share, each head with its own weights, or all heads together. Default is None, not at all.
    attention_scale : float, optional
        Factor on the scores. Default is ``1 / sqrt(head_dim)``. A scheme's ``softmax_scaling`` multiplies it.
    attention_softcap, logit_softcap : float, optional
        Bound c that scores and logits x are squeezed into: :math:`c \tanh(x / c)`. Default is None.
    embedding_scale, residual_scale, logit_scale : float, optional
        Factors on the embeddings, on what attention and feed-forward network add, and on the logits.
        Default is 1.
    sliding_window : int, optional
        Number of tokens that sliding layers see, the current one included. Default is None: no layer slides.
    sliding_layers : sequence of bool, optional
        Whether each layer slides, if ``sliding_window`` is given. Default is all.
    rotated_layers : sequence of bool, optional
        Whether each layer rotates its queries and keys. Default is all.
    sliding_base, sliding_scaling : optional
        As ``base`` and ``scaling``, for the layers that slide. Default is as the others.

    Raises
    ------
    ValueError
        If a size or a factor is not positive, if ``n_kv_head`` does not divide ``n_head``, if a choice is
        unknown or contradicts another, if a sequence has not one value a layer, or if
        :class:`~pytensor_rope.RotaryEmbedding` refuses the rotary hyper-parameters.
    TypeError
        If a size is no integer, a factor no number or a switch no bool.

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
    ...     sliding_window=16,
    ...     sliding_layers=(True, False),
    ... )
    >>> config.n_head // config.n_kv_head
    2
    >>> [config.window(i) for i in range(config.n_layer)]
    [16, None]

    As a Pythia is: LayerNorm, attention beside the feed-forward network, a quarter of each head rotated.

    >>> pythia = DecoderConfig(
    ...     vocab_size=256,
    ...     hidden_size=32,
    ...     intermediate_size=128,
    ...     n_layer=2,
    ...     n_head=4,
    ...     n_kv_head=4,
    ...     head_dim=8,
    ...     context_length=128,
    ...     rotary_dim=2,
    ...     norm="layer",
    ...     norm_bias=True,
    ...     residual="parallel",
    ...     activation="gelu",
    ...     gated=False,
    ...     qkv_bias=True,
    ...     output_bias=True,
    ...     feed_forward_bias=True,
    ... )
    >>> pythia.rotary(0).rotary_dim
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
    norm: str = "rms"
    norm_bias: bool = False
    unit_offset: bool = False
    norm_placement: str = "before"
    residual: str = "sequential"
    shared_norm: bool = False
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    head_bias: bool = False
    qk_norm: str | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    sliding_window: int | None = None
    sliding_layers: Sequence[bool] | None = None
    rotated_layers: Sequence[bool] | None = None
    sliding_base: float | None = None
    sliding_scaling: FrequencyScheme | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_choices()
        self._check_numbers()
        self._check_layers()
        self._set("scaling", resolve_scaling(self.scaling))
        if self.sliding_scaling is not None:
            self._set("sliding_scaling", resolve_scaling(self.sliding_scaling))
        for layer in self._distinct_layers():
            self.rotary(layer)

    def rotary(self, layer: int) -> RotaryEmbedding | None:
        """Return the rotary embedding of a layer's attention, None if it doesn't rotate."""
        if self.rotated_layers is not None and not self.rotated_layers[layer]:
            return None
        slides = self.window(layer) is not None
        base = self.sliding_base if slides else None
        scaling = self.sliding_scaling if slides else None
        return RotaryEmbedding(
            head_dim=self.head_dim,
            base=self.base if base is None else base,
            pairing=self.pairing,
            scaling=self.scaling if scaling is None else scaling,
            rotary_dim=self.rotary_dim,
        )

    def window(self, layer: int) -> int | None:
        """Return how many tokens a layer sees, the current one included, None if it sees all."""
        if self.sliding_layers is not None and not self.sliding_layers[layer]:
            return None
        return self.sliding_window

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
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
            self._set(name, whole_number(name, getattr(self, name), least=1))
        if self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_kv_head must divide n_head, so that every key/value head serves the same number of "
                f"query heads; got n_kv_head={self.n_kv_head} and n_head={self.n_head}."
            )
        if self.sliding_window is not None:
            self._set("sliding_window", whole_number("sliding_window", self.sliding_window, least=1))

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            one_of(name, getattr(self, name), choices)
        if self.qk_norm is not None:
            one_of("qk_norm", self.qk_norm, QK_NORMS)
        for name in _SWITCHES:
            true_or_false(name, getattr(self, name))
        for wrong, why in (
            (self.unit_offset and self.norm != "rms", 'unit_offset needs norm="rms"'),
            (self.shared_norm and self.residual != "parallel", 'shared_norm needs residual="parallel"'),
            (
                self.residual == "parallel" and self.norm_placement != "before",
                'residual="parallel" needs norm_placement="before"',
            ),
        ):
            if wrong:
                raise ValueError(f"{why}; got {self}.")

    def _check_numbers(self) -> None:
        for name in ("epsilon", "embedding_scale", "residual_scale", "logit_scale"):
            positive_number(name, getattr(self, name))
        for name in ("attention_scale", "attention_softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                positive_number(name, getattr(self, name))

    def _check_layers(self) -> None:
        for name in ("sliding_layers", "rotated_layers"):
            given = getattr(self, name)
            if given is None:
                continue
            if not isinstance(given, Sequence) or len(given) != self.n_layer:
                raise ValueError(
                    f"{name} must have one value for each of {self.n_layer} layers; got {given!r}."
                )
            self._set(name, tuple(true_or_false(f"{name}[{i}]", value) for i, value in enumerate(given)))
        needs_window = {"sliding_layers", "sliding_base", "sliding_scaling"}
        given_names = sorted(name for name in needs_window if getattr(self, name) is not None)
        if given_names and self.sliding_window is None:
            raise ValueError(f"{given_names[0]} is given without sliding_window: give both.")

    def _distinct_layers(self) -> list[int]:
        """Return one layer of each kind. A damaged file may promise billions of layers of one kind."""
        if self.sliding_layers is None and self.rotated_layers is None:
            return [0]
        kinds = {
            (self.window(i), self.rotated_layers is None or self.rotated_layers[i]): i
            for i in range(self.n_layer)
        }
        return list(kinds.values())


_CHOICES = {
    "norm": NORMS,
    "norm_placement": NORM_PLACEMENTS,
    "residual": RESIDUALS,
    "activation": ACTIVATIONS,
}
_SWITCHES = (
    "tied",
    "norm_bias",
    "unit_offset",
    "shared_norm",
    "gated",
    "qkv_bias",
    "output_bias",
    "feed_forward_bias",
    "head_bias",
)
