"""A decoder around its layers."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor import TensorLike

from pytensor_rope.backends import on_host
from pytensor_rope.base import (
    FLOAT_DTYPES,
    Layer,
    Tensor,
    axis_indices,
    named_tensor,
    pinned,
    resolve_name,
)
from pytensor_rope.cache import SinkAngles, SinkCache, SinkCacheState
from pytensor_rope.checks import MOST_TOKENS
from pytensor_rope.config import DecoderConfig
from pytensor_rope.decoder_layer import DecoderLayer, normalized, project
from pytensor_rope.parameters import Parameter, parameter
from pytensor_rope.rotary import RotaryEmbedding
from pytensor_rope.weights import (
    are_joined,
    check_weights,
    initial_distribution,
    layer_shapes,
    random_weights,
)


class DecoderState(NamedTuple):
    """
    What a decoder's sink caches hold: NumPy arrays, or variables of the same types.

    It is one :class:`SinkCacheState` a layer, with one common length.

    Attributes
    ----------
    keys, values
        A sequence with one ``(batch, n_kv_head, capacity, head_dim)`` a layer.
    length
        Number of tokens seen by each row, ``(batch,)``, int32.
    """

    keys: Sequence[Any]
    values: Sequence[Any]
    length: Any


class Decoder(Layer):
    """
    A decoder, token ids to logits.

    Parameters
    ----------
    name : str, optional
        Prefix of the parameters' names. Default is "Decoder".
    config : DecoderConfig
        The hyper-parameters.
    weights : mapping of str to array, optional
        The weights, matrices stored ``(in, out)``: "embedding" ``(vocab_size, hidden_size)``; for each
        layer i "layers.{i}." with "attention_norm", "query", "key", "value", "output",
        "feed_forward_norm", "gate", "up" and "down"; "final_norm"; and, unless tied, "head"
        ``(hidden_size, vocab_size)``. :func:`pytensor_rope.weights.weight_shapes` lists what other
        configurations have. ``pytensor_rope.weights.join_projections`` puts those of one input side by
        side, which is faster. They are not copied. Default is random normal weights of standard deviation
        0.02, norms that scale by 1 and biases of 0.
    seed : int, optional
        Seed of the random weights.

    Attributes
    ----------
    config : DecoderConfig
    parameters : dict of str to Parameter
        The weights by name.

    Raises
    ------
    ValueError
        If a weight is missing, left over or of another shape than ``config`` gives, or their dtypes differ.

    References
    ----------
    .. [1] Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", arXiv 2302.13971.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import Decoder, DecoderConfig
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
    >>> decoder = Decoder(config=config, seed=0)
    >>> decoder(pt.lmatrix("token_ids")).type.shape
    (None, None, 256)
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        config: DecoderConfig,
        weights: Mapping[str, np.ndarray] | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = resolve_name(name, type(self).__name__, "config")
        self.config = config
        self._rotaries = _Rotaries(config)
        if weights is None:
            weights = random_weights(config, seed)
        check_weights(weights, config)
        self._layer_names = tuple(layer_shapes(config, joined=are_joined(weights)))
        self.dtype = str(weights["embedding"].dtype)
        self.parameters: dict[str, Parameter] = {
            key: self._parameter(key, value) for key, value in weights.items()
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        with on_host([parameter.container.storage for parameter in self.parameters.values()]):
            twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __call__(self, token_ids: TensorLike, /) -> Tensor:
        """
        Return the logits of every next token, each token attending to all before it.

        Parameters
        ----------
        token_ids : tensor
            Shape ``(batch, seq)``, integers from 0 to ``vocab_size - 1``. A graph can't check that they
            are (:class:`Stream` and :meth:`Model.logits` do).

        Returns
        -------
        tensor
            Shape ``(batch, seq, vocab_size)``, in the weights' dtype.

        Raises
        ------
        TypeError
            If ``token_ids`` are no matrix of integers.
        """
        ids = _check_token_ids(token_ids)
        x = self.embed(ids)
        positions = pt.zeros_like(ids, dtype="int32") + axis_indices(ids, 1)[None, :]
        for i in range(self.config.n_layer):
            rotary = self._rotaries[i]
            angles: list[Tensor] = []
            if rotary is not None:
                query = rotary.angles(positions, dtype=self.dtype)
                angles = [*query, *query, *rotary.angles(positions, dtype=self.dtype, of="keys")]
            layer = self._layer_op(i, sinks=0, window=self.config.window(i))
            x, _, _ = layer(x, *self._layer_weights(i), *angles, positions)
        return self.logits(self._normalize(x))

    def layer_caches(self, cache: SinkCache | Sequence[SinkCache]) -> tuple[SinkCache, ...]:
        """
        Return the cache of each layer, given one for all or a sequence of one for each.

        A layer that sees a window of its own, no longer than what the cache would show it, keeps it: its
        cache then holds that window at true positions, and no sinks.

        Raises
        ------
        ValueError, TypeError
            If there are more or fewer than layers, or one is no :class:`SinkCache`.
        """
        n_layer = self.config.n_layer
        given: Any = (cache,) * n_layer if isinstance(cache, SinkCache) else cache
        caches = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(isinstance(of_layer, SinkCache) for of_layer in caches):
            raise TypeError(f"cache must be a SinkCache or a sequence of them; got {cache!r}.")
        if len(caches) != n_layer:
            raise ValueError(
                f"cache must be one SinkCache, or one for each of {n_layer} layers; got {len(caches)}."
            )
        return tuple(cache_within(of_layer, self.config.window(i)) for i, of_layer in enumerate(caches))

    def longest_chunk(self, cache: SinkCache | Sequence[SinkCache], length: int) -> int | None:
        """
        Return how many tokens can be read as one chunk after ``length``, as if they were read one by one.

        Parameters
        ----------
        cache : SinkCache or sequence of SinkCache
            The cache, as :meth:`attend` takes it.
        length : int
            Tokens seen before the chunk.

        Returns
        -------
        int or None
            The most tokens, at least 1; None for any number.
        """
        pairs = set(zip(self.layer_caches(cache), self._rotaries.kinds, strict=True))
        bounds = [
            of_layer.longest_chunk(rotary.scaling, length)
            for of_layer, kind in pairs
            if (rotary := self._rotaries.of_kind(kind)) is not None
        ]
        return min((bound for bound in bounds if bound is not None), default=None)

    def same_until(self, length: int) -> int:
        """Return the greatest length of a full pass with the frequencies of ``length``."""
        rotaries = map(self._rotaries.of_kind, set(self._rotaries.kinds))
        bounds = [rotary.scaling.same_until(max(length, 1)) for rotary in rotaries if rotary is not None]
        return min((bound for bound in bounds if bound is not None), default=MOST_TOKENS)

    def initial_state(
        self, cache: SinkCache | Sequence[SinkCache], batch: int, dtype: str | None = None
    ) -> DecoderState:
        """
        Return the empty state of a cache.

        Parameters
        ----------
        cache : SinkCache or sequence of SinkCache
            The cache's layout, one for all layers or one for each.
        batch : int
            Number of rows.
        dtype : str, optional
            dtype of keys and values: the weights', or a narrower float to save memory. Attention is
            computed as without it. Default is the weights'.

        Returns
        -------
        DecoderState
            NumPy arrays.

        Raises
        ------
        ValueError, TypeError
            If ``batch`` is no positive integer, ``dtype`` no float or wider than the weights', or there is
            not a cache for each layer.
        """
        config = self.config
        dtype = check_cache_dtype(dtype, self.dtype)
        states = [
            of_layer.initial_state(batch, config.n_kv_head, config.head_dim, dtype)
            for of_layer in self.layer_caches(cache)
        ]
        return DecoderState(
            keys=[state.keys for state in states],
            values=[state.values for state in states],
            length=states[0].length,
        )

    def attend(
        self,
        token_ids: TensorLike,
        state: DecoderState,
        cache: SinkCache | Sequence[SinkCache],
        count: Tensor | None = None,
    ) -> tuple[Tensor, DecoderState]:
        """
        Read a chunk of tokens after those in the cache, and put it into the cache.

        Parameters
        ----------
        token_ids : tensor
            Shape ``(batch, seq)``, integers.
        state : DecoderState
            The state before the chunk, arrays or variables.
        cache : SinkCache or sequence of SinkCache
            The cache that ``state`` belongs to, one for all layers or one for each. Layers whose caches are
            equal are compiled once.
        count : tensor, optional
            Number of tokens of the chunk that are real, ``(batch,)``; the others come last and are
            neither seen nor written. Default is all.

        Returns
        -------
        hidden : tensor
            The normalised hidden states, ``(batch, seq, hidden_size)``; :meth:`logits` takes them.
        new_state : DecoderState
            The state after the chunk.

        Raises
        ------
        ValueError, TypeError
            If ``state`` is not one of this decoder and ``cache``, or ``token_ids`` are no matrix of integers.
        """
        ids = _check_token_ids(token_ids)
        caches = self.layer_caches(cache)
        state = DecoderState(
            keys=[pt.as_tensor(keys) for keys in state.keys],
            values=[pt.as_tensor(values) for values in state.values],
            length=pt.as_tensor(state.length),
        )
        self._check_state(state, caches)
        x = self.embed(ids)
        positions = caches[0].chunk_positions(state.length, ids, count)
        length_after = caches[0].length_after(state.length, ids, count)
        readings: dict[Any, tuple[SinkAngles | None, Tensor]] = {}
        new_states = []
        for i, (of_layer, keys, values) in enumerate(zip(caches, state.keys, state.values, strict=True)):
            rotary = self._rotaries[i]
            reading = of_layer, self._rotaries.kinds[i]
            if reading not in readings:
                angles = None
                if rotary is not None:
                    angles = of_layer.angles(rotary, positions, state.length, length_after, dtype=self.dtype)
                readings[reading] = angles, of_layer.slot_positions(state.length)
            angles, slot_positions = readings[reading]
            turned, by = keys, []
            if angles is not None and rotary is not None:
                by = [*angles.query, *angles.sink_query, *angles.key]
                if angles.cached is not None:
                    turned = rotary.rotate(keys, *angles.cached)
            layer = self._layer_op(i, sinks=of_layer.sinks, window=of_layer.window)
            x, k, v = layer(x, *self._layer_weights(i), *by, positions, turned, values, slot_positions)
            new_states.append(of_layer.update(SinkCacheState(keys, values, state.length), k, v, count))
        new_state = DecoderState(
            keys=[new.keys for new in new_states],
            values=[new.values for new in new_states],
            length=new_states[0].length,
        )
        return self._normalize(x), new_state

    def _check_state(self, state: DecoderState, caches: Sequence[SinkCache]) -> None:
        n_layer = self.config.n_layer
        if (len(state.keys), len(state.values)) != (n_layer, n_layer):
            raise ValueError(
                f"The state has keys of {len(state.keys)} and values of {len(state.values)} layers, but "
                f"{self.name} has {n_layer}: make it with initial_state."
            )
        dtype = check_cache_dtype(state.keys[0].dtype, self.dtype)
        for rows, cache in zip((*state.keys, *state.values), (*caches, *caches), strict=True):
            if rows.dtype != dtype or rows.type.shape[2] not in (None, cache.capacity):
                raise ValueError(
                    f"The state must hold {dtype} in {cache.capacity} slots for {cache!r}; got {rows.type}."
                )

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings of ``token_ids (...)``, ``(..., hidden_size)`` in the weights' dtype."""
        return _scaled(self.parameters["embedding"][token_ids], self.config.embedding_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits ``(..., vocab_size)`` of normalised hidden states ``(..., hidden_size)``."""
        head = self.parameters["embedding"].T if self.config.tied else self.parameters["head"]
        logits = project(hidden, head, self.parameters.get("head_bias"))
        logits = _scaled(logits, self.config.logit_scale)
        if self.config.logit_softcap is None:
            return logits
        bound = pinned(self.config.logit_softcap, logits.dtype)
        return cast(Tensor, bound * pt.tanh(logits / bound))

    def _parameter(self, key: str, value: np.ndarray) -> Parameter:
        mean, std = initial_distribution(key, self.config)
        return parameter(value, f"{self.name}.{key}", mean=mean, std=std)

    def _normalize(self, x: Tensor) -> Tensor:
        return normalized(
            x,
            self.parameters["final_norm"],
            self.parameters.get("final_norm_bias"),
            norm=self.config.norm,
            epsilon=self.config.epsilon,
            unit_offset=self.config.unit_offset,
        )

    def _layer_op(self, i: int, *, sinks: int, window: int | None) -> DecoderLayer:
        config, rotary = self.config, self._rotaries[i]
        scale = config.attention_scale or 1 / np.sqrt(config.head_dim)
        if rotary is not None:
            scale *= rotary.scaling.softmax_scaling
        return DecoderLayer(
            weights=self._layer_names,
            n_head=config.n_head,
            n_kv_head=config.n_kv_head,
            norm=config.norm,
            unit_offset=config.unit_offset,
            epsilon=config.epsilon,
            residual=config.residual,
            residual_scale=float(config.residual_scale),
            activation=config.activation,
            pairing=config.pairing,
            rotary_dim=0 if rotary is None else config.rotary_dim or config.head_dim,
            caches_rotated_keys=rotary is None or rotary.scaling.caches_rotated_keys,
            scale=float(scale),
            softcap=config.attention_softcap,
            sinks=sinks,
            window=window,
        )

    def _layer_weights(self, i: int) -> list[Parameter]:
        return [self.parameters[f"layers.{i}.{name}"] for name in self._layer_names]


class _Rotaries:
    """The rotary embedding of each layer, one for all layers of a kind."""

    def __init__(self, config: DecoderConfig) -> None:
        rotated = config.rotated_layers or (True,) * config.n_layer
        self.kinds = [
            ("sliding" if config.window(i) is not None else "full") if rotated[i] else "unrotated"
            for i in range(config.n_layer)
        ]
        self._of_kind: dict[str, RotaryEmbedding | None] = {}
        for i, kind in enumerate(self.kinds):
            if kind not in self._of_kind:
                rotary = config.rotary(i)
                self._of_kind[kind] = None if rotary is None else rotary.sequential()

    def __getitem__(self, layer: int) -> RotaryEmbedding | None:
        return self._of_kind[self.kinds[layer]]

    def of_kind(self, kind: str) -> RotaryEmbedding | None:
        return self._of_kind[kind]


def cache_within(cache: SinkCache, window: int | None) -> SinkCache:
    """Return the cache of a layer that sees ``window`` tokens, None for all, where ``cache`` is asked for."""
    if window is None or window > cache.sinks + cache.window:
        return cache
    return SinkCache(0, window, cache.headroom, "absolute")


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else cast(Tensor, x * pinned(factor, x.dtype))


def check_cache_dtype(dtype: object, weights_dtype: str) -> str:
    """Return the dtype of keys and values, refusing what is no float or wider than the weights'."""
    if dtype is None:
        return weights_dtype
    narrow_enough = FLOAT_DTYPES[: FLOAT_DTYPES.index(weights_dtype) + 1]
    if dtype not in narrow_enough:
        raise ValueError(
            f"The cache's dtype must be one of {', '.join(narrow_enough)} for a decoder in {weights_dtype}; "
            f"got {dtype!r}."
        )
    return str(dtype)


def _check_token_ids(token_ids: TensorLike) -> Tensor:
    ids = named_tensor(token_ids, "token_ids")
    if ids.ndim != 2 or not ids.dtype.startswith(("int", "uint")):
        raise TypeError(f"token_ids must be integers of shape (batch, seq); got {ids.type}.")
    return ids
