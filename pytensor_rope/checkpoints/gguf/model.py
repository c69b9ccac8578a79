"""What every architecture reads from a GGUF file's metadata in the same way."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, Metadata
from pytensor_rope.checkpoints.gguf.rope import LayerFrequencies, layer_frequencies
from pytensor_rope.checkpoints.gguf.tensors import Layout
from pytensor_rope.checkpoints.hyperparameters import Hyperparameters
from pytensor_rope.config import DecoderConfig
from pytensor_rope.frequencies import MRoPE

_PLAIN = Layout()


class Description(NamedTuple):
    """A decoder, and how its file arranges its weights."""

    config: DecoderConfig
    layout: Layout


class ModelFile:
    """
    The metadata and the tensors' shapes of a file, from which an architecture's module makes a description.

    A module asks for the keys that its architecture has beside the usual ones, in :attr:`keys`, and calls
    :meth:`describe` last: it reads the usual ones and refuses every key that nobody asked for.

    Parameters
    ----------
    architecture : str
        Its name, which the keys begin with.
    metadata : dict
        The file's metadata.
    shapes : mapping of str to tuple of int
        The shapes of the file's tensors, matrices as ``(out, in)``.
    rope_factors : ndarray, optional
        The file's factors on the rotary frequencies, as :func:`frequencies_from_config` takes them.

    Raises
    ------
    CheckpointError
        From each method, if a key is missing or wrong, or if one that may change what the model computes
        isn't implemented.
    """

    def __init__(
        self,
        architecture: str,
        metadata: Metadata,
        shapes: Mapping[str, tuple[int, ...]],
        rope_factors: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self.architecture = architecture
        self.keys = Hyperparameters(metadata, f"{architecture}.")
        self._shapes = shapes
        self._rope_factors = rope_factors
        self.n_layer = self.keys.integer("block_count")
        self.hidden_size = self.keys.integer("embedding_length")
        self.n_head = self.keys.integer("attention.head_count")
        self.head_dim = self.keys.integer("attention.key_length", max(self.hidden_size // self.n_head, 1))
        self._n_kv_head = self.keys.integer("attention.head_count_kv", self.n_head)
        self._context_length = self.keys.integer("context_length")
        self._intermediate_size = self.keys.integer("feed_forward_length")
        self._check_width()

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor."""
        return tensor in self._shapes

    def rms_epsilon(self) -> float:
        """Return the constant of RMSNorm."""
        return self.keys.real("attention.layer_norm_rms_epsilon")

    def layer_epsilon(self) -> float:
        """Return the constant of LayerNorm."""
        return self.keys.real("attention.layer_norm_epsilon")

    def sliding_layers(self, period: int) -> list[bool]:
        """
        Return which layers slide: all but the last of each period.

        Parameters
        ----------
        period : int
            What llama.cpp has in its code for the architecture. The metadata may say another, or which
            layers.
        """
        key = "attention.sliding_window_pattern"
        pattern = self.keys.period_or_flags(key, period)
        if isinstance(pattern, list):
            if len(pattern) != self.n_layer:
                raise CheckpointError(
                    f"{self.architecture}.{key} has {len(pattern)} flags for {self.n_layer} layers."
                )
            return pattern
        return [pattern == 0 or i % pattern < pattern - 1 for i in self.layers()]

    def layers(self) -> range:
        """Return the numbers of the layers. A damaged file may promise billions that it hasn't."""
        if self.n_layer > len(self._shapes):
            raise CheckpointError(
                f"{self.architecture}.block_count is {self.n_layer}, and the file has {len(self._shapes)} "
                f"tensors."
            )
        return range(self.n_layer)

    def frequencies(self) -> LayerFrequencies:
        """Return the rotary frequencies of the layers, asking for every key that begins with ``rope.``."""
        frequencies = layer_frequencies(
            self.keys,
            self.architecture,
            head_dim=self.head_dim,
            context_length=self._context_length,
            rope_freqs=self._rope_factors,
        )
        if isinstance(frequencies.full.scaling, MRoPE):
            raise CheckpointError(
                f"{self.architecture}.rope.dimension_sections turns heads by several position axes: this "
                f"isn't implemented for a decoder, which has one."
            )
        if frequencies.sliding_dim != frequencies.full.rotary_dim:
            raise CheckpointError(
                f"{self.architecture}.rope.dimension_count_swa is {frequencies.sliding_dim} and that of the "
                f"other layers {frequencies.full.rotary_dim}: this isn't implemented."
            )
        return frequencies

    def describe(
        self, *, layout: Layout = _PLAIN, frequencies: LayerFrequencies | None = None, **own: Any
    ) -> Description:
        """
        Return the description, reading what is the same for all architectures.

        Parameters
        ----------
        layout : Layout, optional
            How the file arranges the weights. Whether it fuses queries, keys and values is found out here.
        frequencies : LayerFrequencies, optional
            What :meth:`frequencies` returned, for an architecture whose sliding layers have their own.
            Default is to read it here, and to refuse such.
        **own
            What the architecture has of its own, as :class:`DecoderConfig` takes it.
        """
        try:
            config = self._config(layout, frequencies, own)
        except CheckpointError:
            raise
        except (TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from error
        self.keys.finish()
        fused = {
            "fused_qkv": self.has("blk.0.attn_qkv.weight"),
            "fused_qkv_bias": self.has("blk.0.attn_qkv.bias"),
        }
        return Description(config, replace(layout, **fused))

    def _config(
        self, layout: Layout, frequencies: LayerFrequencies | None, own: Mapping[str, Any]
    ) -> DecoderConfig:
        full = self._same_frequencies() if frequencies is None else frequencies.full
        self._refuse_the_rest()
        if layout.fused_up:
            self._expect_shape("blk.0.ffn_up.weight", (2 * self._intermediate_size, self.hidden_size))
        usual: dict[str, Any] = {
            "vocab_size": self.keys.integer("vocab_size", self._shapes["token_embd.weight"][0]),
            "hidden_size": self.hidden_size,
            "intermediate_size": self._intermediate_size,
            "n_layer": self.n_layer,
            "n_head": self.n_head,
            "n_kv_head": self._n_kv_head,
            "head_dim": self.head_dim,
            "context_length": self._context_length,
            "tied": not self.has("output.weight"),
            "qkv_bias": self.has("blk.0.attn_q.bias") or self.has("blk.0.attn_qkv.bias"),
            "output_bias": self.has("blk.0.attn_output.bias"),
            "base": full.base,
            "scaling": full.scaling,
            "rotary_dim": None if full.rotary_dim == self.head_dim else full.rotary_dim,
        }
        return DecoderConfig(**usual | dict(own))

    def _same_frequencies(self) -> Any:
        frequencies = self.frequencies()
        if frequencies.sliding_base != frequencies.full.base:
            raise CheckpointError(
                f"{self.architecture}.rope.freq_base_swa is {frequencies.sliding_base} and freq_base "
                f"{frequencies.full.base}: this isn't implemented for {self.architecture}."
            )
        return frequencies.full

    def _refuse_the_rest(self) -> None:
        """Refuse what changes the model, unless the architecture has asked for it before."""
        keys = self.keys
        for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
            keys.expect(key, self.head_dim)
        for key in ("attention.sliding_window", "expert_count", "expert_used_count", "nextn_predict_layers"):
            keys.expect(key, 0)
        for key in ("attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale"):
            keys.expect(key, 0.0)
        for key in ("logit_scale", "residual_scale", "embedding_scale"):
            keys.expect(key, 0.0, 1.0)
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            keys.expect(key, 0.0)
        keys.expect("attention.causal", True)
        keys.expect("use_parallel_residual", False)
        keys.expect("tensor_data_layout", "Meta AI original pth")

    def _check_width(self) -> None:
        # Shapes first: the sizes of a damaged file may be too large to build anything with.
        if not self.has("token_embd.weight"):
            raise CheckpointError("the tensor token_embd.weight is missing.")
        n_query, n_key = self.n_head * self.head_dim, self._n_kv_head * self.head_dim
        if self.has("blk.0.attn_qkv.weight"):
            self._expect_shape("blk.0.attn_qkv.weight", (n_query + 2 * n_key, self.hidden_size))
        else:
            self._expect_shape("blk.0.attn_q.weight", (n_query, self.hidden_size))

    def _expect_shape(self, tensor: str, shape: tuple[int, ...]) -> None:
        if not self.has(tensor):
            raise CheckpointError(f"the tensor {tensor} is missing.")
        if self._shapes[tensor] != shape:
            raise CheckpointError(
                f"the tensor {tensor} has shape {self._shapes[tensor]}; the metadata need {shape}."
            )
