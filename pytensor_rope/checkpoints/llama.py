"""The Llama family: Llama, SmolLM2 and what else calls itself ``llama``."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import CheckpointError, Metadata, Weight
from pytensor_rope.checkpoints.gguf_rope import gguf_frequencies
from pytensor_rope.checkpoints.hyperparameters import Hyperparameters
from pytensor_rope.config import DecoderConfig


def gguf_config(
    metadata: Metadata,
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: npt.NDArray[np.float32] | None = None,
) -> DecoderConfig:
    """
    Read the configuration from a GGUF file's metadata.

    Parameters
    ----------
    metadata : dict
        The file's metadata.
    shapes : mapping of str to tuple of int
        The shapes of the file's tensors, matrices as ``(out, in)``.
    rope_factors : ndarray, optional
        The file's factors on the rotary frequencies, as :func:`frequencies_from_config` takes them.

    Returns
    -------
    DecoderConfig

    Raises
    ------
    CheckpointError
        If a key is missing or wrong, or if one that may change what the model computes isn't
        implemented.
    """
    keys = Hyperparameters(metadata, "llama.")
    hidden_size = keys.integer("embedding_length")
    n_head = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", max(hidden_size // n_head, 1))
    context_length = keys.integer("context_length")
    scaling, base, rotary_dim = gguf_frequencies(
        keys, "llama", head_dim=head_dim, context_length=context_length, rope_freqs=rope_factors
    )

    keys.expect("attention.value_length", head_dim)
    keys.expect("attention.sliding_window", 0)
    keys.expect("attention.causal", True)
    keys.expect("attention.clamp_kqv", 0.0)
    keys.expect("attention.max_alibi_bias", 0.0)
    keys.expect("attention.scale", 0.0)
    keys.expect("expert_count", 0)
    keys.expect("expert_used_count", 0)
    keys.expect("use_parallel_residual", False)
    keys.expect("logit_scale", 0.0, 1.0)
    keys.expect("residual_scale", 0.0, 1.0)
    keys.expect("embedding_scale", 0.0, 1.0)
    keys.expect("tensor_data_layout", "Meta AI original pth")

    # Shapes first: the sizes of a damaged file may be too large to build anything with.
    if "token_embd.weight" not in shapes:
        raise CheckpointError("the tensor token_embd.weight is missing.")
    query = shapes.get("blk.0.attn_q.weight")
    if query is None:
        raise CheckpointError("the tensor blk.0.attn_q.weight is missing.")
    if query != (n_head * head_dim, hidden_size):
        raise CheckpointError(
            f"blk.0.attn_q.weight has shape {query}; {n_head} heads of {head_dim} on an embedding "
            f"of {hidden_size} need {(n_head * head_dim, hidden_size)}."
        )
    config = DecoderConfig(
        vocab_size=keys.integer("vocab_size", shapes["token_embd.weight"][0]),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        n_layer=keys.integer("block_count"),
        n_head=n_head,
        n_kv_head=keys.integer("attention.head_count_kv", n_head),
        head_dim=head_dim,
        context_length=context_length,
        epsilon=keys.real("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in shapes,
        base=base,
        scaling=scaling,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )
    keys.finish()
    return config


def gguf_weights(config: DecoderConfig) -> Iterator[Weight]:
    """
    Yield what a GGUF file must hold, no more and no less.

    GGUF stores the rows of the query and key projections so that the two coordinates of a
    rotation are neighbours; here they are half a head apart, as ``pairing="half"`` rotates them.
    """
    hidden, intermediate = config.hidden_size, config.intermediate_size
    n_query, n_key = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    rotary_dim = config.rotary_dim or config.head_dim
    query_rows = unpaired_rows(config.n_head, config.head_dim, rotary_dim)
    key_rows = unpaired_rows(config.n_kv_head, config.head_dim, rotary_dim)

    def vector(name: str, source: str) -> Weight:
        return Weight(name=name, source=f"{source}.weight", shape=(hidden,))

    def matrix(
        name: str, source: str, n_in: int, n_out: int, rows: npt.NDArray[np.intp] | None = None
    ) -> Weight:
        return Weight(
            name=name,
            source=f"{source}.weight",
            shape=(n_out, n_in),
            transpose=True,
            rows=rows,
        )

    yield Weight(name="embedding", source="token_embd.weight", shape=(config.vocab_size, hidden))
    for i in range(config.n_layer):
        ours, theirs = f"layers.{i}", f"blk.{i}"
        yield vector(f"{ours}.attention_norm", f"{theirs}.attn_norm")
        yield matrix(f"{ours}.query", f"{theirs}.attn_q", hidden, n_query, query_rows)
        yield matrix(f"{ours}.key", f"{theirs}.attn_k", hidden, n_key, key_rows)
        yield matrix(f"{ours}.value", f"{theirs}.attn_v", hidden, n_key)
        yield matrix(f"{ours}.output", f"{theirs}.attn_output", n_query, hidden)
        yield vector(f"{ours}.feed_forward_norm", f"{theirs}.ffn_norm")
        yield matrix(f"{ours}.gate", f"{theirs}.ffn_gate", hidden, intermediate)
        yield matrix(f"{ours}.up", f"{theirs}.ffn_up", hidden, intermediate)
        yield matrix(f"{ours}.down", f"{theirs}.ffn_down", intermediate, hidden)
    yield vector("final_norm", "output_norm")
    if not config.tied:
        yield matrix("head", "output", hidden, config.vocab_size)


def unpaired_rows(n_head: int, head_dim: int, rotary_dim: int) -> npt.NDArray[np.intp]:
    """
    Return where each row of a projection in adjacent-pair order goes in half-split order.

    Parameters
    ----------
    n_head : int
        Number of heads of this projection.
    head_dim : int
        Rows of one head.
    rotary_dim : int
        How many of them, from the first, are rotated. The others stay where they are.

    Returns
    -------
    ndarray of int
        Shape ``(n_head * head_dim,)``.

    Examples
    --------
    >>> from pytensor_rope.checkpoints.llama import unpaired_rows
    >>> unpaired_rows(1, 6, 6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    head = np.arange(head_dim)
    head[:rotary_dim] = head[:rotary_dim].reshape(2, rotary_dim // 2).T.ravel()
    heads = np.arange(n_head)[:, None] * head_dim + head
    return heads.ravel()
