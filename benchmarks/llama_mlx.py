"""
A Llama-like decoder in MLX: by hand with ``mx.fast``, and mlx-lm's own.

By hand, matrices are stored (in, out) and the output head once more so: MLX's fastest form on a CPU. mlx-lm
keeps them (out, in), as its checkpoints do.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import pytensor_rope as rope

NAMES_IN_MLX_LM = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


class MlxLlama:
    """
    The decoder by hand, with one stream of ``sinks + window`` tokens, begun from a full state by name.

    One query serves the whole cache, as ``mx.fast.scaled_dot_product_attention`` takes it: instead of a
    second query for the sinks, their keys are turned with the window.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], config: rope.DecoderConfig, sinks: int, window: int
    ) -> None:
        own = {name: mx.array(weight) for name, weight in weights.items()}
        head = own["head"] if "head" in own else mx.contiguous(own["embedding"].T)
        mx.eval(own, head)
        self._weights, self._head, self._config = own, head, config
        self._sinks, self._window = sinks, window

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Go on from the state of a stream that is full, or will be with the next token."""
        layers = range(self._config.n_layer)
        self._keys = [mx.array(state[f"keys.{i}"]) for i in layers]
        self._values = [mx.array(state[f"values.{i}"]) for i in layers]
        self._sink_keys = [keys[:, :, : self._sinks] for keys in self._keys]
        mx.eval(self._keys, self._values, self._sink_keys)
        self._position = int(state["length"][0])
        if self._position < self._sinks + self._window - 1:
            raise ValueError("the cache must be full")

    def step(self, token: int) -> np.ndarray:
        """Read one token; return the logits."""
        config, weights = self._config, self._weights
        moved = self._position - (self._sinks + self._window - 1)
        slot = self._sinks + (self._position - self._sinks) % self._window
        x = weights["embedding"][mx.array([[token]])]
        for i in range(config.n_layer):
            layer = f"layers.{i}."
            h = mx.fast.rms_norm(x, weights[layer + "attention_norm"], config.epsilon)
            q, k, v = (
                (h @ weights[layer + name]).reshape(1, 1, -1, config.head_dim).transpose(0, 2, 1, 3)
                for name in ("query", "key", "value")
            )
            keys, values = self._keys[i], self._values[i]
            keys[:, :, slot : slot + 1] = self._rotate(k, self._position)
            values[:, :, slot : slot + 1] = v
            if self._sinks and moved:
                keys[:, :, : self._sinks] = self._turn(self._sink_keys[i], moved)
            attended = mx.fast.scaled_dot_product_attention(
                self._rotate(q, self._position), keys, values, scale=config.head_dim**-0.5
            )
            x = x + attended.transpose(0, 2, 1, 3).reshape(1, 1, -1) @ weights[layer + "output"]
            h = mx.fast.rms_norm(x, weights[layer + "feed_forward_norm"], config.epsilon)
            h = nn.silu(h @ weights[layer + "gate"]) * (h @ weights[layer + "up"])
            x = x + h @ weights[layer + "down"]
        x = mx.fast.rms_norm(x, weights["final_norm"], config.epsilon)
        logits = (x @ self._head)[0, 0]
        mx.eval(logits, self._keys, self._values)
        self._position += 1
        return np.array(logits)

    def _rotate(self, x: Any, position: int) -> Any:
        return mx.fast.rope(
            x, self._config.head_dim, traditional=False, base=self._config.base, scale=1.0, offset=position
        )

    def _turn(self, keys: Any, by: int) -> Any:
        """Rotate all keys by the same number of positions: as one token of many heads each."""
        turned = self._rotate(keys.reshape(1, -1, 1, self._config.head_dim), by)
        return turned.reshape(keys.shape)


class MlxLmLlama:
    """mlx-lm's Llama with its own rotating cache, which keeps the sinks but at their true distance."""

    def __init__(
        self, weights: dict[str, np.ndarray], config: rope.DecoderConfig, sinks: int, window: int
    ) -> None:
        from mlx_lm.models.llama import Model, ModelArgs

        self._model = Model(
            ModelArgs(
                model_type="llama",
                hidden_size=config.hidden_size,
                num_hidden_layers=config.n_layer,
                intermediate_size=config.intermediate_size,
                num_attention_heads=config.n_head,
                num_key_value_heads=config.n_kv_head,
                head_dim=config.head_dim,
                rms_norm_eps=config.epsilon,
                vocab_size=config.vocab_size,
                rope_theta=config.base,
                max_position_embeddings=config.context_length,
                tie_word_embeddings=config.tied,
            )
        )
        self._model.load_weights(
            [(_name_in_mlx_lm(name), _as_mlx_lm(name, w)) for name, w in weights.items()]
        )
        mx.eval(self._model.parameters())
        self._capacity, self._sinks, self._layers = sinks + window, sinks, range(config.n_layer)

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Go on from the state of a stream that has not yet lost a token, in the order of time."""
        from mlx_lm.models.cache import RotatingKVCache

        n = int(state["length"][0])
        if n > self._capacity:
            raise ValueError("the cache must hold all tokens")
        self._cache = []
        for i in self._layers:
            cache = RotatingKVCache(max_size=self._capacity, keep=self._sinks)
            keys, values = (mx.array(state[f"{kind}.{i}"][:, :, :n]) for kind in ("keys", "values"))
            mx.eval(keys, values)
            cache.keys, cache.values, cache.offset, cache._idx = keys, values, n, n
            self._cache.append(cache)

    def step(self, token: int) -> np.ndarray:
        """Read one token; return the logits."""
        logits = self._model(mx.array([[token]]), self._cache)[0, 0]
        mx.eval(logits)
        return np.array(logits)


def _name_in_mlx_lm(name: str) -> str:
    if name in ("embedding", "final_norm", "head"):
        return {
            "embedding": "model.embed_tokens.weight",
            "final_norm": "model.norm.weight",
            "head": "lm_head.weight",
        }[name]
    _, layer, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES_IN_MLX_LM[kind]}.weight"


def _as_mlx_lm(name: str, weight: np.ndarray) -> Any:
    matrix = weight.ndim == 2 and name != "embedding"
    return mx.array(np.ascontiguousarray(weight.T) if matrix else weight)
