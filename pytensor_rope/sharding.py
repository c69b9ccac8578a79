"""How a decoder is spread over a JAX mesh: its weights by tensor, its state by data and by head."""

from typing import Any

from pytensor_rope.decoder import Decoder, DecoderState

# The last part of a weight's name: the axis of it that is split.
_SPLIT_AXES = {
    "embedding": 0,
    "query": 1,
    "key": 1,
    "value": 1,
    "query_key_value": 1,
    "output": 0,
    "gate": 1,
    "up": 1,
    "gate_up": 1,
    "down": 0,
    "head": 1,
    "query_bias": 0,
    "key_bias": 0,
    "value_bias": 0,
    "query_key_value_bias": 0,
    "gate_bias": 0,
    "up_bias": 0,
    "gate_up_bias": 0,
    "head_bias": 0,
}


def decoder_shardings(decoder: Decoder, mesh: Any, *, model: str = "model") -> dict[str, Any]:
    """
    Return how the parameters of a decoder are split by tensor.

    The projections to queries, keys, values and into the feed-forward network are split by their columns,
    those back to the residual stream by their rows, so that one sum over the devices ends each half of a
    layer; the embedding and the head are split by the vocabulary. Norms, and what the axis of the mesh
    doesn't divide, are kept whole on each device.

    Joined projections, those of a loaded :class:`Model`, are split by their columns too, but XLA then has to
    send parts of what they give around. Better give :class:`Decoder` the weights of
    ``pytensor_rope.checkpoints.load_checkpoint``, which are apart.

    Parameters
    ----------
    decoder : Decoder
        The decoder.
    mesh : jax.sharding.Mesh
        The devices.
    model : str, optional
        The axis of the mesh to split over. Default is "model".

    Returns
    -------
    dict of str to jax.sharding.NamedSharding
        By the names that :func:`to_jax` gives the parameters: ``jax.device_put(params, shardings)`` splits
        them.

    Raises
    ------
    ValueError
        If the mesh has no such axis, or it is not of type ``jax.sharding.AxisType.Auto``: how what is
        computed is split is left to XLA.

    References
    ----------
    .. [1] Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
       Parallelism", arXiv 1909.08053.

    Examples
    --------
    >>> import jax
    >>> from pytensor_rope import Decoder, DecoderConfig, decoder_shardings
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
    >>> auto = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=auto)
    >>> shardings = decoder_shardings(Decoder(config=config, seed=0), mesh)
    >>> shardings["Decoder.layers.0.query"].spec, shardings["Decoder.layers.0.output"].spec
    (P(None, 'model'), P('model', None))
    """
    n_device = _axis_size(mesh, model)
    shardings = {}
    for key, parameter in decoder.parameters.items():
        shape = parameter.type.shape
        axes: list[str | None] = [None] * len(shape)
        split = _SPLIT_AXES.get(key.rpartition(".")[2])
        if split is not None and shape[split] % n_device == 0:
            axes[split] = model
        shardings[str(parameter.name)] = _named_sharding(mesh, axes)
    return shardings


def state_shardings(
    state: DecoderState, mesh: Any, *, data: str = "data", model: str = "model"
) -> DecoderState:
    """
    Return how the state of a decoder's caches is split: by row over one axis, by head over another.

    Parameters
    ----------
    state : DecoderState
        The state, arrays.
    mesh : jax.sharding.Mesh
        The devices.
    data, model : str, optional
        The axes of the mesh to split the rows and the key/value heads over. What an axis doesn't divide is
        kept whole along it. Default is "data" and "model".

    Returns
    -------
    DecoderState
        Of ``jax.sharding.NamedSharding``: ``jax.device_put(state, shardings)`` splits the state.

    Raises
    ------
    ValueError
        If the mesh has no such axis, or it is not of type ``jax.sharding.AxisType.Auto``: how what is
        computed is split is left to XLA.
    """
    n_data, n_model = _axis_size(mesh, data), _axis_size(mesh, model)

    def split(array: Any) -> Any:
        rows = data if array.shape[0] % n_data == 0 else None
        if array.ndim == 1:
            return _named_sharding(mesh, [rows])
        heads = model if array.shape[1] % n_model == 0 else None
        return _named_sharding(mesh, [rows, heads, None, None])

    return DecoderState(
        keys=[split(keys) for keys in state.keys],
        values=[split(values) for values in state.values],
        length=split(state.length),
    )


def _named_sharding(mesh: Any, axes: list[str | None]) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*axes))


def _axis_size(mesh: Any, name: str) -> int:
    if name not in mesh.shape:
        raise ValueError(f"The mesh must have an axis {name!r}; got {', '.join(mesh.shape)}.")
    kind = mesh.axis_types[mesh.axis_names.index(name)]
    if kind.name != "Auto":
        raise ValueError(
            f"The mesh's axis {name!r} must be Auto, not {kind.name}: make the mesh with axis_types="
            f"(jax.sharding.AxisType.Auto,) * {len(mesh.axis_names)}."
        )
    return int(mesh.shape[name])
