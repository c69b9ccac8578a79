"""
A Llama-like decoder as one writes it in JAX: the mathematics of this package's, under ``jax.jit``.

Matrices are stored (in, out) and multiplied from the right, and the tied output head is a product with the
hidden vector: XLA's fastest forms for one token. The cache is donated, so a step writes it in place.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pytensor_rope as rope
from benchmarks.ops_jax import angles, jitted_angles, rms_norm, rotate

type Params = dict[str, Any]


class JaxLlama:
    """The decoder with one stream of ``sinks + window`` tokens, begun from a state by name."""

    def __init__(
        self, weights: dict[str, np.ndarray], config: rope.DecoderConfig, sinks: int, window: int
    ) -> None:
        self._params = _as_tree(weights, config)
        self._step = jax.jit(partial(step, config=config, sinks=sinks, window=window), donate_argnums=(1, 2))
        self._prefill = jax.jit(partial(prefill, config=config))
        self._config, self._layers = config, range(config.n_layer)

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Go on from the state of a stream: keys as this package keeps them, rotated once."""
        self._keys = [jnp.array(state[f"keys.{i}"][0]) for i in self._layers]
        self._values = [jnp.array(state[f"values.{i}"][0]) for i in self._layers]
        self._position = int(state["length"][0])

    def step(self, token: int) -> np.ndarray:
        """Read one token; return the logits."""
        logits, self._keys, self._values = self._step(
            self._params, self._keys, self._values, np.int32(token), np.int32(self._position)
        )
        self._position += 1
        return np.asarray(logits)

    def prefill(self, ids: np.ndarray) -> np.ndarray:
        """Read a prompt from an empty cache, into which it must fit; return the last logits."""
        cos, sin = jitted_angles(np.arange(len(ids), dtype="int32"), self._config.head_dim, self._config.base)
        logits, *cache = self._prefill(self._params, ids, cos, sin)
        jax.block_until_ready(cache)
        return np.asarray(logits)


def step(
    params: Params,
    keys: list[Any],
    values: list[Any],
    token: Any,
    position: Any,
    *,
    config: rope.DecoderConfig,
    sinks: int,
    window: int,
) -> tuple[Any, list[Any], list[Any]]:
    """Read one token: sinks are seen from the last position of the cache, the window from the true one."""
    capacity = sinks + window
    slot = jnp.where(position < capacity, position, sinks + (position - sinks) % window)
    visible = jnp.arange(capacity) <= position
    cos, sin = angles(position, config.head_dim, config.base)
    sink_cos, sink_sin = angles(jnp.minimum(position, capacity - 1), config.head_dim, config.base)
    n_kv_head, head_dim = config.n_kv_head, config.head_dim
    by_kv_head = n_kv_head, config.n_head // n_kv_head, head_dim

    x = params["embedding"][token][None]
    keys, values = list(keys), list(values)
    for i, layer in enumerate(params["layers"]):
        h = rms_norm(x, layer["attention_norm"], config.epsilon)
        q = (h @ layer["query"]).reshape(by_kv_head)
        k = (h @ layer["key"]).reshape(n_kv_head, head_dim)
        v = (h @ layer["value"]).reshape(n_kv_head, head_dim)
        keys[i] = keys[i].at[:, slot].set(rotate(k, cos, sin).astype(k.dtype))
        values[i] = values[i].at[:, slot].set(v)
        scores = jnp.einsum("hgd,hsd->hgs", rotate(q, cos, sin).astype(q.dtype), keys[i])
        sink_query = rotate(q, sink_cos, sink_sin).astype(q.dtype)
        sink_scores = jnp.einsum("hgd,hsd->hgs", sink_query, keys[i][:, :sinks])
        scores = jnp.concatenate([sink_scores, scores[..., sinks:]], axis=-1).astype("float32")
        weights = _softmax(scores, visible, head_dim).astype(x.dtype)
        attended = jnp.einsum("hgs,hsd->hgd", weights, values[i])
        x = _through_layer(x, attended.reshape(1, -1), layer, config)
    x = rms_norm(x, params["final_norm"], config.epsilon)
    return params["head"] @ x[0], keys, values


def prefill(
    params: Params, ids: Any, cos: Any, sin: Any, *, config: rope.DecoderConfig
) -> tuple[Any, list[Any], list[Any]]:
    """Read a whole prompt at once, given its angles; return the last logits, and keys and values."""
    n = len(ids)
    visible = jnp.tril(jnp.ones((n, n), bool))
    x = params["embedding"][ids]
    keys, values = [], []
    for layer in params["layers"]:
        h = rms_norm(x, layer["attention_norm"], config.epsilon)
        q, k, v = (
            (h @ layer[name]).reshape(n, -1, config.head_dim).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        q, k = (rotate(heads, cos, sin).astype(heads.dtype) for heads in (q, k))
        keys.append(k)
        values.append(v)
        q = q.reshape(config.n_kv_head, -1, n, config.head_dim)
        scores = jnp.einsum("hgqd,hsd->hgqs", q, k).astype("float32")
        weights = _softmax(scores, visible, config.head_dim).astype(x.dtype)
        attended = jnp.einsum("hgqs,hsd->hgqd", weights, v).reshape(config.n_head, n, config.head_dim)
        x = _through_layer(x, attended.swapaxes(0, 1).reshape(n, -1), layer, config)
    x = rms_norm(x[-1], params["final_norm"], config.epsilon)
    return params["head"] @ x, keys, values


def _through_layer(x: Any, attended: Any, layer: Params, config: rope.DecoderConfig) -> Any:
    """Add what attention and the feed-forward network give."""
    x = x + attended @ layer["output"]
    h = rms_norm(x, layer["feed_forward_norm"], config.epsilon)
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]


def _softmax(scores: Any, visible: Any, head_dim: int) -> Any:
    scale = jnp.float32(1 / np.sqrt(head_dim))
    return jax.nn.softmax(jnp.where(visible, scores * scale, jnp.float32(-jnp.inf)), axis=-1)


def _as_tree(weights: dict[str, np.ndarray], config: rope.DecoderConfig) -> Params:
    on_device = {name: jax.device_put(weight) for name, weight in weights.items()}
    layers = []
    for i in range(config.n_layer):
        prefix = f"layers.{i}."
        layers.append(
            {name.removeprefix(prefix): w for name, w in on_device.items() if name.startswith(prefix)}
        )
    head = on_device["embedding"] if config.tied else jnp.array(on_device["head"].T)
    return {
        "embedding": on_device["embedding"],
        "head": head,
        "final_norm": on_device["final_norm"],
        "layers": layers,
    }
