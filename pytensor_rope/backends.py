"""Graphs to functions: the right mode for each linker, and state that stays where it is used."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.maker import function as pytensor_function
from pytensor.compile.mode import Mode, get_mode
from pytensor.configdefaults import config
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

BACKENDS = ("c", "numba", "jax", "mlx")

# Included by the mode for C, so that graphs compiled by others keep their own products.
MATRIX_PRODUCTS = "rope_matrix_products"


def function(
    inputs: Sequence[Any],
    outputs: Any,
    *,
    backend: str,
    updates: Any = None,
    **kwargs: Any,
) -> "CompiledFunction":
    """
    Compile a graph for one backend.

    As :func:`pytensor.function`, with the mode that serves the backend best. Shared variables are moved
    to the backend's own arrays at the first call that uses them there, and stay: neither weights nor
    state are converted at each call. Updates are written in place on C and Numba and into donated memory
    on JAX, so an array that a shared variable held before an update must not be used after it.

    Parameters
    ----------
    inputs : sequence of Variable
        The inputs.
    outputs : Variable, list of Variable, or None
        The outputs.
    backend : {"c", "numba", "jax", "mlx"}
        The linker to compile for.
    updates : iterable of pairs or dict, optional
        New values of shared variables.
    **kwargs
        Passed on to :func:`pytensor.function`, all but ``mode``.

    Returns
    -------
    CompiledFunction
        Called with arrays, returns NumPy arrays in the structure of ``outputs``.

    Raises
    ------
    ValueError
        If ``backend`` is unknown.
    ImportError
        If the backend isn't installed.
    NotImplementedError
        If the graph uses float16 on Numba, which has no such arrays.
    TypeError
        If a ``mode`` is given.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import function, rms_norm
    >>> x = pt.matrix("x", dtype="float32")
    >>> normalize = function([x], rms_norm(x), backend="numba")
    >>> normalize([[1000.0, -1000.0]])
    array([[ 1., -1.]], dtype=float32)
    """
    backend = check_backend(backend)
    if "mode" in kwargs:
        raise TypeError("function chooses the mode for its backend; leave mode out.")
    pairs = list(updates.items() if hasattr(updates, "items") else updates or [])
    computed = [*_flatten(outputs), *(new for _, new in pairs)]
    dtypes = variable_dtypes(computed)
    if backend == "numba" and "float16" in dtypes:
        raise NotImplementedError(
            "Numba has no float16 arrays. Cast to float32, or compile for the c, jax or mlx backend."
        )
    device = _DEVICES[backend](dtypes)
    device.lay_out([*computed, *(shared for shared, _ in pairs)])
    with device.scope():
        compiled = pytensor_function(list(inputs), outputs, updates=pairs, mode=device.mode(), **kwargs)
    made_from = (list(inputs), outputs, backend, pairs, kwargs)
    return CompiledFunction(compiled, device, made_from)


def check_backend(backend: object) -> str:
    """Return ``backend``, refusing one that is unknown or not installed."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}.")
    if backend == "c" and not config.cxx:
        raise ImportError("The c backend needs a C++ compiler, and PyTensor has found none. Install g++.")
    if backend != "c" and find_spec(str(backend)) is None:
        raise ImportError(
            f'The {backend} backend is not installed. Install it: pip install "pytensor-rope[{backend}]".'
        )
    return str(backend)


class CompiledFunction:
    """
    A function compiled for one backend, made by :func:`pytensor_rope.function`.

    It pickles and copies as the graph it was made from, with the values of its shared variables, and is
    compiled again.

    Attributes
    ----------
    backend : str
        The backend's name.
    compiled : pytensor.compile.executor.Function
        The PyTensor function that is called.
    """

    def __init__(self, compiled: Any, device: "_Device", made_from: tuple[Any, ...]) -> None:
        self.compiled = compiled
        self._made_from = made_from
        self.backend = device.name
        self._device = device
        self._dtypes = [getattr(output.variable.type, "dtype", None) for output in compiled.maker.outputs]
        # Tensors alone: a random generator, say, stays what it is.
        self._updated = [
            entry.variable.container.storage
            for entry in compiled.maker.inputs
            if entry.update is not None and isinstance(entry.variable.type, TensorType)
        ]
        written = {id(storage) for storage in self._updated}
        self._read = [
            variable.container.storage
            for variable in compiled.get_shared()
            if isinstance(variable.type, TensorType) and id(variable.container.storage) not in written
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs, as NumPy arrays."""
        device = self._device
        with device.scope():
            for storages, donated in ((self._read, False), (self._updated, True)):
                for storage in storages:
                    if not isinstance(storage[0], device.array_type):
                        storage[0] = device.put(storage[0], donated)
            outputs = self.compiled(*args, **kwargs)
            device.finish(outputs, self._updated)
            return self._to_numpy(outputs)

    def __reduce__(self) -> Any:
        return _compile_again, self._made_from

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledFunction":
        with on_host([*self._read, *self._updated]):
            twin = _compile_again(*copy.deepcopy(self._made_from, memo))
        memo[id(self)] = twin
        return twin

    def _to_numpy(self, outputs: Any) -> Any:
        """Return the outputs as NumPy arrays of the dtypes that the graph declares."""
        if outputs is None:
            return None
        if not isinstance(outputs, list):
            return self._device.to_numpy(outputs, self._dtypes[0])
        return [
            self._device.to_numpy(output, dtype) for output, dtype in zip(outputs, self._dtypes, strict=True)
        ]


def _compile_again(
    inputs: list[Any], outputs: Any, backend: str, updates: list[Any], kwargs: dict[str, Any]
) -> CompiledFunction:
    return function(inputs, outputs, backend=backend, updates=updates, **kwargs)


@contextmanager
def on_host(storages: Iterable[list[Any]]) -> Iterator[None]:
    """
    Hold NumPy arrays in the storages of shared variables for a while, to copy these.

    PyTensor copies no storage that holds an array of JAX's or MLX's.
    """
    storages = list(storages)
    values = [storage[0] for storage in storages]
    for storage, value in zip(storages, values, strict=True):
        storage[0] = np.asarray(value)
    try:
        yield
    finally:
        for storage, value in zip(storages, values, strict=True):
            storage[0] = value


class _Device:
    """Where a backend keeps its arrays: NumPy's own memory, unless a subclass says otherwise."""

    name = "c"
    array_type: type = np.ndarray

    def __init__(self, dtypes: set[str]) -> None:
        self._dtypes = dtypes

    def mode(self) -> Mode:
        # Nothing here gains from BLAS calls in generated C: what isn't ours goes to NumPy's own BLAS.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = config.blas__ldflags
        mode: Mode = get_mode("CVM").excluding("BlasOpt").including(MATRIX_PRODUCTS)
        # A fused loop that touches float16 would run in Python, element by element.
        return mode.excluding("fusion") if "float16" in self._dtypes else mode

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def put(self, value: Any, donated: bool) -> Any:
        return np.array(value)

    def lay_out(self, outputs: list[Any]) -> None:
        """Lay out the shared matrices that the outputs are computed from as they are read."""

    def finish(self, outputs: Any, updated: list[Any]) -> None:
        """Wait for what the linker leaves unfinished."""

    def to_numpy(self, output: Any, dtype: str | None) -> Any:
        return np.asarray(output)


class _NumbaDevice(_Device):
    name = "numba"

    def mode(self) -> Mode:
        return cast(Mode, get_mode("NUMBA"))


class _JaxDevice(_Device):
    name = "jax"

    def __init__(self, dtypes: set[str]) -> None:
        super().__init__(dtypes)
        import jax

        self.array_type = jax.Array

    def mode(self) -> Mode:
        from pytensor_rope.lowering.jax import jax_mode

        return jax_mode()

    def scope(self) -> AbstractContextManager[Any]:
        import jax

        # Without it JAX would take int64 for int32 and float64 for float32, silently, when floatX is
        # float32. Our graphs say their dtypes, so nothing else is widened.
        scope: AbstractContextManager[Any] = jax.enable_x64(True)
        return scope

    def put(self, value: Any, donated: bool) -> Any:
        import jax

        # What is read may share NumPy's memory; what is donated must be JAX's own.
        return jax.numpy.array(value) if donated else jax.device_put(np.asarray(value))

    def to_numpy(self, output: Any, dtype: str | None) -> Any:
        return np.array(output, dtype=dtype)


class _MlxDevice(_Device):
    name = "mlx"

    def __init__(self, dtypes: set[str]) -> None:
        super().__init__(dtypes)
        import mlx.core as mx

        self.array_type = mx.array

    def mode(self) -> Mode:
        from pytensor_rope.lowering.mlx.linker import mlx_mode

        return mlx_mode()

    def put(self, value: Any, donated: bool) -> Any:
        from pytensor_rope.lowering.mlx.layout import as_mlx

        return as_mlx(value)

    def lay_out(self, outputs: list[Any]) -> None:
        from pytensor_rope.lowering.mlx.layout import column_major, multiplied_transposed

        for variable in multiplied_transposed([getattr(output, "variable", output) for output in outputs]):
            storage = variable.container.storage
            storage[0] = column_major(storage[0])

    def finish(self, outputs: Any, updated: list[Any]) -> None:
        import mlx.core as mx

        # MLX is lazy: without this the graph of a state that nobody reads would grow with each call.
        mx.eval(outputs, [storage[0] for storage in updated])

    def to_numpy(self, output: Any, dtype: str | None) -> Any:
        return np.array(output, dtype=dtype)


_DEVICES: dict[str, Callable[[set[str]], _Device]] = {
    "c": _Device,
    "numba": _NumbaDevice,
    "jax": _JaxDevice,
    "mlx": _MlxDevice,
}


def _flatten(outputs: Any) -> list[Any]:
    if outputs is None:
        return []
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def variable_dtypes(outputs: Iterable[Any]) -> set[str]:
    """Return the dtypes of all variables that the outputs are computed from, inside ops too."""
    variables: list[Variable[Any, Any]] = [getattr(output, "variable", output) for output in outputs]
    found: set[str] = set()
    for variable in ancestors(variables):
        found.add(getattr(variable.type, "dtype", ""))
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, OpFromGraph):
            found |= variable_dtypes(op.inner_outputs)
    return found
