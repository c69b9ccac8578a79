"""The tensors of a GGUF file by its uniform names, and how they become a decoder's weights."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytensor_rope.checkpoints.base import Weight
from pytensor_rope.config import DecoderConfig
from pytensor_rope.weights import layer_shapes


@dataclass(frozen=True, kw_only=True)
class Layout:
    """
    How a file arranges what a decoder has.

    Parameters
    ----------
    paired : bool, optional
        Whether the two rows of a query or key projection that turn together are neighbours in the file and
        half a head apart in the decoder. Default is False: they are where the decoder has them.
    fused_qkv, fused_qkv_bias : bool, optional
        Whether the projections of queries, keys and values, or their biases, are one tensor, in this order.
        Default is False.
    fused_up : bool, optional
        Whether gate and up are one tensor, in this order. Default is False.
    """

    paired: bool = False
    fused_qkv: bool = False
    fused_qkv_bias: bool = False
    fused_up: bool = False


def gguf_weights(config: DecoderConfig, layout: Layout) -> Iterator[Weight]:
    """Yield what a GGUF file must hold, no more and no less."""
    hidden = config.hidden_size
    yield Weight(name="embedding", source="token_embd.weight", shape=(config.vocab_size, hidden))
    projections = list(_projections(config, layout))
    for i in range(config.n_layer):
        for weight in projections:
            yield Weight(
                name=f"layers.{i}.{weight.name}",
                source=f"blk.{i}.{weight.source}",
                shape=weight.shape,
                transpose=weight.transpose,
                rows=weight.rows,
            )
    yield from _norm(config, "final_norm", "output_norm", (hidden,))
    if not config.tied:
        yield _matrix("head", "output", hidden, config.vocab_size)
    if config.head_bias:
        yield Weight(name="head_bias", source="output.bias", shape=(config.vocab_size,))


def _projections(config: DecoderConfig, layout: Layout) -> Iterator[Weight]:
    """Yield the weights of one layer, by names without the layer's prefix."""
    hidden, inner = config.hidden_size, config.intermediate_size
    before, after = config.norm_placement != "after", config.norm_placement != "before"
    if before:
        yield from _norm(config, "attention_norm", "attn_norm", (hidden,))
    yield from _attention(config, layout)
    if after:
        yield from _norm(config, "attention_output_norm", "post_attention_norm", (hidden,))
    if before and not config.shared_norm:
        yield from _norm(config, "feed_forward_norm", "ffn_norm", (hidden,))
    bias = config.feed_forward_bias
    if layout.fused_up:
        gate, up = np.arange(inner), np.arange(inner, 2 * inner)
        yield from _linear("gate", "ffn_up", hidden, 2 * inner, bias=bias, rows=gate)
        yield from _linear("up", "ffn_up", hidden, 2 * inner, bias=bias, rows=up)
    else:
        if config.gated:
            yield from _linear("gate", "ffn_gate", hidden, inner, bias=bias)
        yield from _linear("up", "ffn_up", hidden, inner, bias=bias)
    yield from _linear("down", "ffn_down", inner, hidden, bias=bias)
    if after:
        yield from _norm(config, "feed_forward_output_norm", "post_ffw_norm", (hidden,))


def _attention(config: DecoderConfig, layout: Layout) -> Iterator[Weight]:
    hidden, head_dim = config.hidden_size, config.head_dim
    rotary_dim = config.rotary_dim or head_dim
    n_fused = (config.n_head + 2 * config.n_kv_head) * head_dim
    first = 0
    for name, letter, n_head in (
        ("query", "q", config.n_head),
        ("key", "k", config.n_kv_head),
        ("value", "v", config.n_kv_head),
    ):
        n_out = n_head * head_dim
        reordered = layout.paired and name != "value"
        own = unpaired_rows(n_head, head_dim, rotary_dim) if reordered else None
        in_fused = first + (np.arange(n_out) if own is None else own)
        if layout.fused_qkv:
            yield _matrix(name, "attn_qkv", hidden, n_fused, in_fused)
        else:
            yield _matrix(name, f"attn_{letter}", hidden, n_out, own)
        if config.qkv_bias and layout.fused_qkv_bias:
            yield Weight(name=f"{name}_bias", source="attn_qkv.bias", shape=(n_fused,), rows=in_fused)
        elif config.qkv_bias:
            yield Weight(name=f"{name}_bias", source=f"attn_{letter}.bias", shape=(n_out,), rows=own)
        first += n_out
    if config.qk_norm is not None:
        shapes = layer_shapes(config)
        for name, letter in (("query_norm", "q"), ("key_norm", "k")):
            yield from _norm(config, name, f"attn_{letter}_norm", shapes[name])
    yield from _linear("output", "attn_output", config.n_head * head_dim, hidden, bias=config.output_bias)


def _norm(config: DecoderConfig, name: str, source: str, shape: tuple[int, ...]) -> Iterator[Weight]:
    yield Weight(name=name, source=f"{source}.weight", shape=shape)
    if config.norm_bias:
        yield Weight(name=f"{name}_bias", source=f"{source}.bias", shape=shape)


def _linear(
    name: str, source: str, n_in: int, n_out: int, *, bias: bool, rows: npt.NDArray[np.intp] | None = None
) -> Iterator[Weight]:
    yield _matrix(name, source, n_in, n_out, rows)
    if bias:
        yield Weight(name=f"{name}_bias", source=f"{source}.bias", shape=(n_out,), rows=rows)


def _matrix(
    name: str, source: str, n_in: int, n_out: int, rows: npt.NDArray[np.intp] | None = None
) -> Weight:
    return Weight(name=name, source=f"{source}.weight", shape=(n_out, n_in), transpose=True, rows=rows)


def unpaired_rows(n_head: int, head_dim: int, rotary_dim: int) -> npt.NDArray[np.intp]:
    """
    Return which row of a projection in adjacent-pair order each row in half-split order is.

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
    >>> from pytensor_rope.checkpoints.gguf.tensors import unpaired_rows
    >>> unpaired_rows(1, 6, 6).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    head = np.arange(head_dim)
    head[:rotary_dim] = head[:rotary_dim].reshape(rotary_dim // 2, 2).T.ravel()
    heads = np.arange(n_head)[:, None] * head_dim + head
    return heads.ravel()
