"""
What each linker gets instead of an op's generic graph.

PyTensor imports a backend's dispatch package when it first compiles for that backend, and has no hook for
others to add theirs. So the import is watched, and our registrations follow it at once: no backend is
loaded before it is used.

The C linker has no dispatch package, and is there with PyTensor itself: its registrations follow the ops.
pytensor-ml learns of our layers and parameters in the same way.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_REGISTRATIONS = {
    "pytensor_rope.activations": "pytensor_rope.lowering.c.activations",
    "pytensor_rope.angles": "pytensor_rope.lowering.c.angles",
    "pytensor_rope.attention": "pytensor_rope.lowering.c.attention",
    "pytensor_rope.backends": "pytensor_rope.lowering.c.product",
    "pytensor_rope.base": "pytensor_rope.lowering.c.half_product",
    "pytensor_rope.norm": "pytensor_rope.lowering.c.norm",
    "pytensor_rope.rotate": "pytensor_rope.lowering.c.rotate",
    "pytensor_rope.write_tokens": "pytensor_rope.lowering.c.write_tokens",
    "pytensor.link.jax.dispatch": "pytensor_rope.lowering.jax",
    "pytensor.link.mlx.dispatch": "pytensor_rope.lowering.mlx",
    "pytensor.link.numba.dispatch": "pytensor_rope.lowering.numba",
    "pytensor_ml.state": "pytensor_rope.pytensor_ml",
}


class _ThenRegister(Loader):
    """Load a module as its own loader does, then import our registrations for it."""

    def __init__(self, loader: Loader, registration: str) -> None:
        self._loader = loader
        self._registration = registration

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        importlib.import_module(self._registration)


class _DispatchFinder(MetaPathFinder):
    """
    Find the modules that registrations wait for, and nothing else.

    Other finders come before ours or after: pytensor-ml waits for the same dispatch packages.
    """

    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        registration = _REGISTRATIONS.get(fullname)
        if registration is None or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.remove(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _ThenRegister(spec.loader, registration)
        return spec


def register() -> None:
    """Register with every module that is loaded, and wait for the others."""
    sys.meta_path.insert(0, _DispatchFinder())
    for dispatch, registration in _REGISTRATIONS.items():
        if dispatch in sys.modules:
            importlib.import_module(registration)
