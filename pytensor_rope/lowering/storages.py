"""What linkers see in the storages of shared variables while they convert a graph."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType


@contextmanager
def without_values(
    inputs: Iterable[Variable[Any, Any]], storage_map: Mapping[Any, list[Any]]
) -> Iterator[None]:
    """
    Take the values of shared tensors out of their storages for a while.

    PyTensor's linkers copy what they find there, and keep the copy as long as the function.
    """
    storages = [
        storage_map[variable]
        for variable in inputs
        if isinstance(variable, SharedVariable) and isinstance(variable.type, TensorType)
    ]
    values = [storage[0] for storage in storages]
    for storage in storages:
        storage[0] = None
    try:
        yield
    finally:
        for storage, value in zip(storages, values, strict=True):
            storage[0] = value
