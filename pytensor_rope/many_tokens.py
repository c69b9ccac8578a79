"""Many tokens decoded in one call, each chosen inside the graph and read before the next."""

import numpy as np
import pytensor.tensor as pt
from pytensor.scan.basic import scan

from pytensor_rope.backends import CompiledFunction, function
from pytensor_rope.base import Tensor
from pytensor_rope.cache import SinkCache
from pytensor_rope.decoder import Decoder, DecoderState


def decode_many(
    decoder: Decoder, state: DecoderState, cache: SinkCache | tuple[SinkCache, ...], n: int, backend: str
) -> CompiledFunction:
    """
    Compile a scan of up to ``n`` decoding steps over a state of one row, which it updates.

    Parameters
    ----------
    decoder : Decoder
        The model.
    state : DecoderState
        Shared variables.
    cache : SinkCache or tuple of SinkCache
        The cache's layout, one for all layers or one for each.
    n : int
        Number of steps in the scan.
    backend : {"c", "numba", "jax"}
        Where to compute. MLX has no scan in PyTensor.

    Returns
    -------
    CompiledFunction
        Of a token to read, ``(1, 1)``; the number of steps to take, at most ``n``; the temperature that
        logits are divided by; what is added to them then, ``(n, vocab_size)``; and which tokens end the text,
        ``(vocab_size,)``. To the chosen tokens and the largest logit at each step, ``(n,)``, and the number
        of steps taken. Of the arrays, what comes after these steps means nothing.
    """
    n_layer, vocab_size = decoder.config.n_layer, decoder.config.vocab_size
    first = pt.tensor("token", shape=(1, 1), dtype="int32")
    limit = pt.tensor("limit", shape=(), dtype="int32")
    temperature = pt.tensor("temperature", shape=(), dtype="float64")
    noise = pt.tensor("noise", shape=(n, vocab_size), dtype="float64")
    ends = pt.tensor("ends", shape=(vocab_size,), dtype="bool")
    old = [*state.keys, *state.values, state.length]

    def step(i: Tensor, noise: Tensor, token: Tensor, goes_on: Tensor, *rest: Tensor) -> list[Tensor]:
        arrays, (limit, temperature, ends) = rest[: len(old)], rest[len(old) :]
        before = DecoderState(keys=arrays[:n_layer], values=arrays[n_layer : 2 * n_layer], length=arrays[-1])
        reads = goes_on & pt.lt(i, limit)
        hidden, after = decoder.attend(token, before, cache, reads.astype("int32")[None])
        logits = decoder.logits(hidden[:, 0])[0].astype("float64")
        highest = logits.max()
        chosen = pt.argmax((logits - highest) / temperature + noise).astype("int32")
        new = [*after.keys, *after.values, after.length]
        goes_on = reads & ~ends[chosen] & pt.lt(abs(highest), np.inf)  # NaN isn't below it either
        return [chosen.reshape((1, 1)), goes_on, *new, highest, reads.astype("int32")]

    tokens, _, *arrays, highest, reads = scan(
        step,
        sequences=[pt.constant(np.arange(n, dtype="int32")), noise],
        outputs_info=[first, pt.constant(np.True_), *old, None, None],
        non_sequences=[limit, temperature, ends],
        return_updates=False,
    )
    return function(
        [first, limit, temperature, noise, ends],
        [tokens[:, 0, 0], highest, reads.sum(dtype="int32", acc_dtype="int32")],
        backend=backend,
        updates=[(variable, steps[-1]) for variable, steps in zip(old, arrays, strict=True)],
    )
