"""The MLX linker, with weights held once and products shared between threads."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytensor.compile.mode import Mode, get_mode
from pytensor.link.mlx.linker import MLXLinker
from pytensor.tensor.type import TensorType

from pytensor_rope.lowering.mlx.products import convert


class LeanMLXLinker(MLXLinker):
    """An MLX linker that keeps no copies of what shared variables hold when it compiles."""

    def fgraph_convert(  # type: ignore[override]  # As PyTensor's own, which isn't its base's either.
        self, fgraph: Any, input_storage: Any, storage_map: Any, **kwargs: Any
    ) -> Any:
        """Convert a graph to a function of MLX arrays."""
        storages = [storage_map[x] for x in fgraph.inputs if isinstance(x.type, TensorType)]
        with _emptied(storages):
            return super().fgraph_convert(
                fgraph, input_storage, storage_map, conversion_func=convert, **kwargs
            )


def mlx_mode() -> Mode:
    """Return PyTensor's MLX mode, with weights held once and products shared."""
    return Mode(linker=LeanMLXLinker(), optimizer=get_mode("MLX")._optimizer)


@contextmanager
def _emptied(storages: Iterable[list[Any]]) -> Iterator[None]:
    """Hold None in storages for a while."""
    storages = list(storages)
    values = [storage[0] for storage in storages]
    for storage in storages:
        storage[0] = None
    try:
        yield
    finally:
        for storage, value in zip(storages, values, strict=True):
            storage[0] = value
