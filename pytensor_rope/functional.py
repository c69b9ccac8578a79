"""Graphs to pure functions of JAX's and MLX's own arrays, with the parameters as an argument."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.configdefaults import config
from pytensor.graph.basic import Constant, Variable, clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from pytensor_rope.backends import check_backend, variable_dtypes
from pytensor_rope.trees import leaves, leaves_as_in, with_leaves

# PyTensor's settings are those of the whole process: who changes them puts them back before another does.
_SETTINGS = RLock()

_WIDE = ("float64", "complex128")
_WIDE_AT_THE_EDGE = (*_WIDE, "int64", "uint64")


def to_jax(inputs: Sequence[Any], outputs: Any) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    """
    Turn a graph into a pure function of JAX arrays.

    The function has no state and no device: it can be given to ``jax.jit``, ``jax.grad``, ``jax.vmap``,
    ``jax.checkpoint`` and ``jax.export``, its arguments can be sharded and donated. New values of shared
    variables are returned as outputs, not stored.

    Parameters
    ----------
    inputs : sequence of Variable
        The inputs. An entry may be a list, tuple, named tuple or dict of variables: the function then takes
        one of arrays there. A shared variable that stands here is an input.
    outputs : Variable, or list, tuple or dict of them
        The outputs, nested as the function shall return them.

    Returns
    -------
    function : callable
        ``function(params, *arrays)``, one array, or nested arrays, for each input. Called as it is, it works
        through the graph anew each time: give it to ``jax.jit``.
    params : dict of str to numpy.ndarray
        The values of the graph's other shared variables by name, not copied and not yet on a device.
        ``jax.device_put`` puts them on one, or on many.

    Raises
    ------
    ValueError
        If a shared variable has no name or shares it with another, or an input is given twice. From the
        function: if ``params`` lacks a name or has one too many, an array has another shape than its
        variable's type, or the graph needs 64-bit numbers and JAX's are off.
    TypeError
        If an input or output is no tensor variable, or the graph draws random numbers. From the function: if
        an array has another dtype than its variable, or an argument is missing.
    ImportError
        If JAX isn't installed.

    Notes
    -----
    What is computed depends on the graph and on JAX's own settings, not on PyTensor's. Importing PyTensor's
    JAX backend sets ``jax_enable_x64``; this function puts it back as it was. Where it is off, a graph with
    float64 anywhere in it or with int64 among inputs, outputs or parameters is refused when it is called.
    Integers inside the graph are then 32 bits wide, as everywhere in JAX.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import rms_norm, to_jax
    >>> x = pt.matrix("x", dtype="float32")
    >>> weight = pytensor.shared(np.ones(2, "float32"), name="weight")
    >>> normalize, params = to_jax([x], rms_norm(x, weight))
    >>> params
    {'weight': array([1., 1.], dtype=float32)}
    >>> jax.jit(normalize)(params, np.array([[1000, -1000]], "float32"))
    Array([[ 1., -1.]], dtype=float32)
    """
    check_backend("jax")
    import jax

    with _x64_flag_kept():
        from pytensor.link.jax.dispatch.basic import jax_funcify

        from pytensor_rope.lowering.jax import jax_mode

    graph = _PureGraph(inputs, outputs, jax_mode())

    def function(params: Mapping[str, Any], /, *arrays: Any) -> Any:
        if graph.wide and not jax.config.jax_enable_x64:
            raise ValueError(
                f"The graph has {graph.wide}, and JAX's 64-bit numbers are off. Turn them on with "
                'jax.config.update("jax_enable_x64", True), or build the graph in float32 and int32.'
            )
        values = map(jax.numpy.asarray, graph.arguments(params, arrays))
        # Anew in each trace: the constants of one belong to it, and none is put on a device before.
        with _own_settings():
            results = jax_funcify(graph.fgraph)(*values)
        return graph.results(
            jax.numpy.asarray(x, dtype) for x, dtype in zip(results, graph.output_dtypes, strict=True)
        )

    return function, {name: np.asarray(shared.get_value(borrow=True)) for name, shared in graph.parameters()}


def to_mlx(inputs: Sequence[Any], outputs: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """
    Turn a graph into a pure function of MLX arrays.

    It can be given to ``mx.compile``, ``mx.grad`` and ``mx.vmap``, and, in a function of arrays alone, to
    ``mx.export_function``. New values of shared variables are returned as outputs, not stored.

    Parameters
    ----------
    inputs, outputs
        As :func:`to_jax` takes them.

    Returns
    -------
    function : callable
        ``function(params, *arrays)``, one array, or nested arrays, for each input.
    params : dict of str to mlx.core.array
        The values of the graph's other shared variables by name.

    Raises
    ------
    ValueError, TypeError
        As :func:`to_jax`; from the function also if the graph has float64 and MLX's device is a GPU, which
        has none.
    ImportError
        If MLX isn't installed.

    Examples
    --------
    >>> import mlx.core as mx
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import rms_norm, to_mlx
    >>> x = pt.matrix("x", dtype="float32")
    >>> weight = pytensor.shared(np.ones(2, "float32"), name="weight")
    >>> normalize, params = to_mlx([x], rms_norm(x, weight))
    >>> mx.compile(normalize)(params, mx.array([[1000.0, -1000.0]]))
    array([[1, -1]], dtype=float32)
    """
    check_backend("mlx")
    import mlx.core as mx
    from pytensor.link.mlx.dispatch.basic import mlx_funcify

    graph = _PureGraph(inputs, outputs, get_mode("MLX"))
    with _own_settings():
        run = mlx_funcify(graph.fgraph)

    def array(value: Any, dtype: str) -> Any:
        mlx_dtype = getattr(mx, "bool_" if dtype == "bool" else dtype)
        return value.astype(mlx_dtype) if isinstance(value, mx.array) else mx.array(value, mlx_dtype)

    def function(params: Mapping[str, Any], /, *arrays: Any) -> Any:
        if graph.wide in _WIDE and mx.default_device() != mx.cpu:
            raise ValueError(
                f"The graph has {graph.wide}, which MLX computes on the CPU alone. Choose it with "
                "mx.set_default_device(mx.cpu), or build the graph in float32."
            )
        values = map(array, graph.arguments(params, arrays), graph.input_dtypes)
        with _own_settings():
            results = run(*values)
        return graph.results(map(array, results, graph.output_dtypes))

    params = {
        name: array(np.asarray(shared.get_value(borrow=True)), shared.dtype)
        for name, shared in graph.parameters()
    }
    return function, params


class _PureGraph:
    """
    A graph rewritten for one linker, with its parameters as the first inputs.

    Attributes
    ----------
    fgraph : FunctionGraph
        Of the parameters, then of all inputs.
    input_dtypes, output_dtypes : list of str
        What is declared, for all of ``fgraph``'s.
    wide : str or None
        A dtype that the graph has and JAX has only with its 64-bit numbers on.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Any, mode: Mode) -> None:
        if isinstance(inputs, Variable) or not isinstance(inputs, Sequence):
            raise TypeError(f"inputs must be a list of variables; got {inputs!r}.")
        self._inputs, self._outputs = list(inputs), outputs
        given = [_checked(variable, "An input") for variable in leaves(self._inputs)]
        computed = [_checked(variable, "An output") for variable in leaves(outputs)]
        if len(set(given)) < len(given):
            twice = next(variable for variable in given if given.count(variable) > 1)
            raise ValueError(f"inputs must differ from one another; got {twice} twice.")
        self._parameters = _named_parameters(computed, given)

        roots = [*self._parameters.values(), *given]
        self._labels = [
            *(f"Parameter {name!r}" for name in self._parameters),
            *(f"Input {x.name!r}" if x.name else f"Input {i}" for i, x in enumerate(given)),
        ]
        self._types: list[TensorType] = [variable.type for variable in roots]
        self.input_dtypes = [type_.dtype for type_ in self._types]
        self.output_dtypes = [variable.dtype for variable in computed]
        self.wide = next(
            iter(
                sorted({*self.input_dtypes, *self.output_dtypes} & set(_WIDE_AT_THE_EDGE))
                + sorted(variable_dtypes(computed) & set(_WIDE))
            ),
            None,
        )
        # Plain variables in place of the shared ones: the function keeps no weights alive.
        memo: Any = {variable: variable.type(variable.name) for variable in roots}
        clone_get_equiv(roots, computed, memo=memo)
        self.fgraph = FunctionGraph(
            [memo[variable] for variable in roots], [memo[variable] for variable in computed], clone=False
        )
        with _own_settings():
            mode.optimizer.rewrite(self.fgraph)
        self._names = list(self._parameters)

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the shared variables by name, once: they are not kept."""
        parameters, self._parameters = self._parameters, {}
        yield from parameters.items()

    def arguments(self, params: Any, arrays: tuple[Any, ...]) -> list[Any]:
        """Return the function's arguments as a list, refusing what isn't declared."""
        if not isinstance(params, Mapping):
            raise TypeError(f"params must be a dict of arrays by name; got a {type(params).__name__}.")
        missing, surplus = set(self._names) - params.keys(), params.keys() - set(self._names)
        if missing or surplus:
            raise ValueError(
                f"params must have the graph's names: missing {sorted(missing)[:5] or 'none'}, left over "
                f"{sorted(surplus)[:5] or 'none'}."
            )
        if len(arrays) != len(self._inputs):
            raise TypeError(f"The function takes params and {len(self._inputs)} inputs; got {len(arrays)}.")
        given = [params[name] for name in self._names] + leaves_as_in(self._inputs, list(arrays), "inputs")
        return [
            _as_declared(value, type_, label)
            for value, type_, label in zip(given, self._types, self._labels, strict=True)
        ]

    def results(self, arrays: Any) -> Any:
        """Return the computed arrays, nested as the outputs are."""
        return with_leaves(self._outputs, iter(arrays))


def _checked(variable: Any, what: str) -> Any:
    """Return an input or output, refusing what is no tensor variable."""
    if not isinstance(variable, Variable):
        raise TypeError(f"{what} must be a variable; got {variable!r}.")
    _check_no_generator(variable)
    if not isinstance(variable.type, TensorType):
        raise TypeError(f"{what} must be a tensor; got {variable} of {variable.type}.")
    if what == "An input" and isinstance(variable, Constant):
        raise TypeError(f"{what} must not be a constant; got {variable}.")
    return variable


def _check_no_generator(variable: Variable[Any, Any]) -> None:
    if isinstance(variable.type, RandomType):
        raise TypeError(
            "The graph draws from a random generator, which is no array. Draw with jax.random or "
            "mlx.core.random, and make what was drawn an input."
        )


def _named_parameters(outputs: list[Any], inputs: list[Any]) -> dict[str, Any]:
    """Return the shared variables that are no inputs by name, refusing names that don't tell them apart."""
    parameters: dict[str, Any] = {}
    for variable in ancestors(outputs, blockers=inputs):
        _check_no_generator(variable)
        if not isinstance(variable, SharedVariable) or variable in inputs:
            continue
        if not isinstance(variable.type, TensorType):
            raise TypeError(f"A shared variable must be a tensor; got {variable} of {variable.type}.")
        if not variable.name:
            raise ValueError(
                f"Parameters are told apart by name, and a shared {variable.type} has none: give it one, "
                'pytensor.shared(value, name="weight"), or make it an input.'
            )
        if parameters.setdefault(variable.name, variable) is not variable:
            raise ValueError(
                f"Parameters are told apart by name, and two shared variables are named {variable.name!r}: "
                "rename one, or make it an input."
            )
    return parameters


def _as_declared(value: Any, declared: TensorType, label: str) -> Any:
    """Return an array, refusing one of another dtype or shape than its variable's."""
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    dtype = str(value.dtype).removeprefix("mlx.core.").rstrip("_")
    if dtype != declared.dtype:
        raise TypeError(f"{label} must be {declared.dtype}; got {dtype}. Nothing is cast: cast it first.")
    shape = tuple(value.shape)
    fits = len(shape) == len(declared.shape) and all(
        known in (None, size) for known, size in zip(declared.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{label} must have shape {declared.shape}; got {shape}.")
    return value


@contextmanager
def _own_settings() -> Iterator[None]:
    """Rewrite and trace graphs alike, however PyTensor is configured."""
    with _SETTINGS, config.change_flags(floatX="float64", cast_policy="custom"):
        yield


@contextmanager
def _x64_flag_kept() -> Iterator[None]:
    """Keep JAX's choice of 64-bit numbers, which importing PyTensor's JAX backend sets."""
    import jax

    with ThreadPoolExecutor(1) as other_thread:  # where no context manager of this one hides it
        chosen = other_thread.submit(lambda: jax.config.jax_enable_x64).result()
    yield
    jax.config.update("jax_enable_x64", chosen)
