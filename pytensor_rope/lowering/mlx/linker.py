"""The MLX linker, with weights held once and products shared between threads."""

from typing import Any

from pytensor.compile.mode import Mode, get_mode
from pytensor.link.mlx.linker import MLXLinker

from pytensor_rope.lowering.mlx.products import convert
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


def mlx_mode() -> Mode:
    """Return PyTensor's MLX mode, with weights held once and products shared."""
    return Mode(linker=LeanMLXLinker(), optimizer=get_mode("MLX")._optimizer)
