"""Saving a graph to a file and loading it."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytensor_rope.graph_files.archive import (
    FORMAT,
    FORMAT_VERSION,
    damaged,
    missing_extra,
    read_archive,
    write_archive,
)
from pytensor_rope.graph_files.errors import GraphFileError

# From each older version, what makes a description of the next one.
_UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def save_graph(
    path: str | os.PathLike[str], inputs: Sequence[Any], outputs: Any, *, allow: Iterable[type] = ()
) -> None:
    """
    Write a graph and the values of its shared variables to a file, for :func:`load_graph`.

    The file is one archive of a description in JSON and the weights in safetensors. It holds graphs of this
    package's layers and of PyTensor's own ops, scans, batched ops and random variables included, before any
    compilation: a graph of a compiled function, fused and in place, is refused. It is replaced in one step.

    Parameters
    ----------
    path : str or path
        The file to write; its folder must exist.
    inputs : sequence of Variable
        The graph's inputs. Shared variables are found by themselves.
    outputs : Variable or sequence of Variable
        What the graph computes.
    allow : iterable of type, optional
        Op classes of your own that the graph has. They must be described by their ``__props__``, plain
        values, and take these by keyword. Default is none.

    Raises
    ------
    GraphFileError
        If the graph has an op that a file can't hold, such as one that keeps a Python function, or depends on
        a variable that is no input, naming it and the way out.
    ImportError
        If pytensor-ml or safetensors isn't installed, naming the extra.
    OSError
        If the file can't be written.

    Examples
    --------
    >>> import tempfile
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import RMSNorm, function, load_graph, save_graph
    >>> x = pt.tensor("x", shape=(None, 2), dtype="float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_graph(f"{folder}/norm.graph", [x], RMSNorm("norm", n_in=2)(x))
    ...     inputs, outputs = load_graph(f"{folder}/norm.graph")
    >>> function(inputs, outputs, backend="jax")([[1000.0, -1000.0]])
    [array([[ 1., -1.]], dtype=float32)]
    """
    engine, check_description, check_added = _machinery()
    from pytensor.graph.basic import Variable
    from pytensor.graph.traversal import io_toposort

    added = check_added(allow)
    given = [outputs] if isinstance(outputs, Variable) else list(outputs)
    leaves, tensors = _leaves(list(inputs), given)
    variables = [variable for variable, _ in leaves]
    nodes = io_toposort(variables, given)
    engine.check_ops(nodes, added)
    try:
        described = engine.describe_graph(variables, given, tensors)
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "written_by": _versions(),
            "leaves": [leaf for _, leaf in leaves],
            "graph": described,
            "output_names": [output.name for output in given],
        }
        check_description(description | {"digest": ""}, added)
        engine.check_rebuilt(described, nodes, added)
    except GraphFileError as error:
        raise GraphFileError(f"The graph can't be saved: {error}") from error
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise GraphFileError(f"The graph can't be saved, since a part of it is not plain: {error}") from error
    write_archive(Path(path), description, tensors)


def load_graph(path: str | os.PathLike[str], *, allow: Iterable[type] = ()) -> tuple[list[Any], list[Any]]:
    """
    Load a graph that :func:`save_graph` wrote, without running any code that the file brings or names.

    The whole description is checked before anything is made of it: every class must be among PyTensor's and
    this package's ops, by its exact path, and every value within bounds. What is trusted is the code of those
    ops, and of the classes in ``allow``; a graph may still compute for long once it is compiled and called.

    Parameters
    ----------
    path : str or path
        The file.
    allow : iterable of type, optional
        Op classes of your own that the file may name. Their constructors are called with plain values from
        the file. Default is none.

    Returns
    -------
    inputs : list of Variable
        Symbolic variables of the saved names and types.
    outputs : list of Variable
        What is computed from them and from new shared variables, which have the saved values and names.
        :func:`pytensor_rope.function` compiles them for any backend, and :func:`pytensor.grad`
        differentiates them.

    Raises
    ------
    GraphFileError
        If the file is no graph's, is damaged, was written by a newer version, or names or asks for something
        that is not allowed. It is a ValueError.
    ImportError
        If pytensor-ml or safetensors isn't installed, naming the extra.
    OSError
        If the file can't be read.

    Examples
    --------
    A graph that is trained further:

    >>> import tempfile
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from pytensor_rope import load_graph, save_graph
    >>> x = pt.tensor("x", shape=(None,), dtype="float32")
    >>> slope = pytensor.shared(np.float32(2), "slope")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_graph(f"{folder}/line.graph", [x], slope * x)
    ...     (x,), (y,) = load_graph(f"{folder}/line.graph")
    >>> (slope,) = (v for v in pytensor.graph.traversal.graph_inputs([y]) if v.name == "slope")
    >>> pt.grad(y.sum(), slope).eval({x: [1.0, 2.0]})
    array(3., dtype=float32)
    """
    engine, check_description, check_added = _machinery()
    added = check_added(allow)
    path = Path(path)
    description, tensors = read_archive(path)
    try:
        for version in range(description["format_version"], FORMAT_VERSION):
            description = _UPGRADES[version](description)
        check_description(description, added)
        leaves = [
            _leaf_variable(leaf, of_leaf, tensors)
            for leaf, of_leaf in zip(description["leaves"], description["graph"]["inputs"], strict=True)
        ]
        outputs = engine.build_graph(description["graph"], leaves, tensors, added)
    except GraphFileError as error:
        raise GraphFileError(f"{path} can't be loaded: {error}") from error
    except (Exception, RecursionError, MemoryError) as error:  # whatever an op says to what it is given
        raise damaged(path, f"it describes no graph ({type(error).__name__}: {str(error)[:200]})") from error
    for output, name in zip(outputs, description["output_names"], strict=True):
        if output.owner is not None:
            output.name = name
    kinds = [leaf["kind"] for leaf in description["leaves"]]
    return [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "input"], outputs


def _machinery() -> tuple[Any, Any, Any]:
    """Return what needs the engine, refusing where it isn't installed."""
    try:
        import pytensor_ml.json_serialize  # noqa: F401
    except ImportError as error:
        raise missing_extra("pytensor-ml") from error
    from pytensor_rope.graph_files import engine
    from pytensor_rope.graph_files.allowed import check_added
    from pytensor_rope.graph_files.description import check_description

    return engine, check_description, check_added


def _leaves(
    inputs: list[Any], outputs: list[Any]
) -> tuple[list[tuple[Any, dict[str, Any]]], dict[str, np.ndarray]]:
    """Return what a graph starts from, the inputs first, each with its description, and the values."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.basic import Constant, Variable
    from pytensor.graph.traversal import graph_inputs

    from pytensor_rope.graph_files.engine import LARGEST_INLINE

    for variable in (*inputs, *outputs):
        if not isinstance(variable, Variable):
            raise TypeError(f"inputs and outputs must be variables; got {variable!r}.")
    for variable in inputs:
        if isinstance(variable, SharedVariable | Constant) or inputs.count(variable) > 1:
            raise GraphFileError(
                f"inputs must be different variables that are neither shared nor constant; got {variable}. "
                "Shared variables are found by themselves."
            )
    leaves = [(variable, {"kind": "input", "name": variable.name, "value": None}) for variable in inputs]
    tensors: dict[str, np.ndarray] = {}
    seen = {id(variable) for variable in inputs}
    for variable in graph_inputs(outputs, inputs):
        if id(variable) in seen:
            continue
        seen.add(id(variable))
        if isinstance(variable, SharedVariable):
            leaves.append((variable, _describe_shared(variable, tensors)))
        elif not isinstance(variable, Constant):
            raise GraphFileError(f"The outputs depend on {variable}, which is not among the inputs.")
        elif _size(variable.data) > LARGEST_INLINE:
            name = _keep(variable.name or "constant", variable.data, variable.type.dtype, tensors)
            leaves.append((variable, {"kind": "constant", "name": variable.name, "value": name}))
    return leaves, tensors


def _size(value: Any) -> int:
    return value.size if isinstance(value, np.ndarray) else 1


def _describe_shared(variable: Any, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    from pytensor.tensor.random.type import RandomGeneratorType
    from pytensor.tensor.type import TensorType
    from pytensor_ml.checkpoint import jsonable_rng_state

    if variable.default_update is not None:
        raise GraphFileError(
            f"{variable} has a default update, which a file doesn't hold. Save it as one more output, and "
            "delete the variable's default_update."
        )
    if isinstance(variable.type, RandomGeneratorType):
        state = jsonable_rng_state(variable.get_value(borrow=True).bit_generator.state)
        return {"kind": "generator", "name": variable.name, "value": state}
    if not isinstance(variable.type, TensorType):
        raise GraphFileError(f"A graph file can't hold the shared variable {variable} of {variable.type}.")
    value = variable.get_value(borrow=True)
    name = _keep(variable.name or "shared", value, variable.type.dtype, tensors)
    return {"kind": "shared", "name": variable.name, "value": name}


def _keep(name: str, value: Any, dtype: str, tensors: dict[str, np.ndarray]) -> str:
    """Put an array among the tensors, under its name or one like it, and return that."""
    if dtype.startswith("complex"):
        raise GraphFileError(f"{name} is complex, which a graph file can't hold. Keep its two parts instead.")
    # Device arrays too, and of the declared dtype, which a backend may have narrowed.
    array = np.asarray(value, dtype=dtype)
    unique, number = name, 1
    while unique in tensors:
        number += 1
        unique = f"{name}.{number}"
    tensors[unique] = array
    return unique


def _leaf_variable(leaf: dict[str, Any], of_leaf: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """Return the variable that a leaf describes."""
    import pytensor.tensor as pt
    from pytensor.compile.sharedvalue import shared
    from pytensor_ml.checkpoint import generator_from_state
    from pytensor_ml.json_serialize import type_from_json

    from pytensor_rope.graph_files.engine import tensor_of_type

    kind, name = leaf["kind"], leaf["name"]
    if kind == "input":
        return type_from_json(of_leaf)(name)
    if kind == "generator":
        if of_leaf["kind"] != "random_generator":
            raise GraphFileError(f"The generator {name!r} must be of the type random_generator.")
        return shared(generator_from_state(leaf["value"]), name, borrow=True)
    value = tensor_of_type(tensors, leaf["value"], of_leaf)
    if kind == "constant":
        return pt.constant(value, name=name)
    return shared(value, name, borrow=True, shape=tuple(of_leaf["shape"]))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    from pytensor_rope import __version__

    packages = {package: version(package) for package in ("pytensor", "pytensor-ml")}
    return {"pytensor-rope": __version__, **packages}
