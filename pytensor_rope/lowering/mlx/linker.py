"""The MLX linker, with weights held once and products shared between threads."""

from collections.abc import Callable
from typing import Any, cast

from pytensor.compile.mode import Mode, get_mode
from pytensor.link.mlx.dispatch.basic import mlx_funcify
from pytensor.link.mlx.linker import MLXLinker

from pytensor_rope.lowering.mlx.entries import convert_entry
from pytensor_rope.lowering.mlx.products import is_shared, product
from pytensor_rope.lowering.storages import without_values


class LeanMLXLinker(MLXLinker):
    """An MLX linker that keeps no copies of what shared variables hold when it compiles."""

    def fgraph_convert(  # type: ignore[override]  # As PyTensor's own, which isn't its base's either.
        self, fgraph: Any, input_storage: Any, storage_map: Any, **kwargs: Any
    ) -> Any:
        """Convert a graph to a function of MLX arrays."""
        with without_values(fgraph.inputs, storage_map):
            return super().fgraph_convert(
                fgraph, input_storage, storage_map, conversion_func=convert, **kwargs
            )


def convert(op: Any, node: Any = None, **kwargs: Any) -> Callable[..., Any]:
    """Convert an op for MLX as PyTensor does, all but what we have a faster form of."""
    if node is not None:
        if is_shared(op, node):
            return product
        entry = convert_entry(op, node)
        if entry is not None:
            return entry
    return cast(Callable[..., Any], mlx_funcify(op, node=node, **kwargs))


def mlx_mode() -> Mode:
    """Return PyTensor's MLX mode, with weights held once and products shared."""
    return Mode(linker=LeanMLXLinker(), optimizer=get_mode("MLX")._optimizer)
