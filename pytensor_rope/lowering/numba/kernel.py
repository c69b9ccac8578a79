"""What the Numba kernels share."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit

# Part of every cache key: raise it whenever a kernel changes.
_VERSION = 9

type Lowered = tuple[Callable[..., Any], str | None]


def cache_key(op: Any, *others: object) -> str:
    """Return the key that a lowering of ``op`` is kept under."""
    props = [getattr(op, name) for name in op.__props__]
    return sha256(repr((type(op), props, others, _VERSION)).encode()).hexdigest()


@numba_njit
def leading(x: Any, core: Any) -> Any:
    """Return how many arrays of the last ``core`` axes there are: -1 in a shape can't tell where one is 0."""
    n = 1
    for axis in range(x.ndim - core):
        n *= x.shape[axis]
    return n
