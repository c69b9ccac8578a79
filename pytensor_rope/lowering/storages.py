"""What linkers see in the storages of shared variables while they convert a graph."""

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType


@contextmanager
def without_values(
    inputs: Iterable[Variable[Any, Any]], storage_map: MutableMapping[Any, list[Any]]
) -> Iterator[None]:
    """
    Hide the values of shared tensors from a linker for a while.

    PyTensor's linkers copy what they find in a storage, and keep the copy as long as the function. The
    storages themselves stay as they are, for others may be reading them.
    """
    storages = {
        variable: storage_map[variable]
        for variable in inputs
        if isinstance(variable, SharedVariable) and isinstance(variable.type, TensorType)
    }
    storage_map.update({variable: [None] for variable in storages})
    try:
        yield
    finally:
        storage_map.update(storages)
