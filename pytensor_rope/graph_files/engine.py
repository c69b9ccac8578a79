"""
pytensor-ml's serializer, fitted to graph files: graphs to descriptions and back.

The engine turns a graph into JSON and makes it anew. Around it are, when a graph is described, what the
engine drops (a reduction's dtypes, a batched op's signature); and, when one is built, a node of our own
around each op, which the engine calls in its place. That node checks the types it gets against those in the
file, and keeps PyTensor from computing constants while the graph is built: a shape that is computed from a
large constant array would otherwise be computed at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, AllocEmpty, Eye, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, specify_shape
from pytensor.tensor.type import TensorType
from pytensor_ml import json_serialize as ml
from pytensor_ml.serialize.base import op_to_json

from pytensor_rope.angles import Angles
from pytensor_rope.base import AxisIndices
from pytensor_rope.graph_files.allowed import EXCEPTIONS, INNER_GRAPHS, LEAVES, MOVED, path_of
from pytensor_rope.graph_files.description import check_type, flat_values
from pytensor_rope.graph_files.errors import GraphFileError

# What ops of our own may compute while a graph is built: frequencies to 60 digits, and indices.
_MOST_FREQUENCIES = 2**16
_MOST_INDICES = 2**22
# A constant of more numbers than this is kept with the weights.
LARGEST_INLINE = 256
# Ops that fold the shape they are given, inputs and all, when a node is made.
_FOLDING = (Alloc, AllocEmpty, Eye, Reshape, RandomVariable)


def describe_graph(
    inputs: Sequence[Variable[Any, Any]],
    outputs: Sequence[Variable[Any, Any]],
    tensors: dict[str, np.ndarray],
) -> dict[str, Any]:
    """
    Return a graph as the engine describes it, with what it drops.

    Large constants inside ops go to ``tensors``.
    """
    return _complete_graph(ml.serialize_graph(inputs, outputs), inputs, outputs, tensors)


def build_graph(
    described: dict[str, Any],
    inputs: Sequence[Variable[Any, Any]] | None,
    tensors: Mapping[str, np.ndarray],
    added: Mapping[str, type],
) -> list[Variable[Any, Any]]:
    """Return the outputs of a graph whose description has been checked, built on ``inputs``."""
    outputs: list[Variable[Any, Any]]
    _, outputs = ml.deserialize_graph(_Preparation(tensors, added).graph(described), inputs)
    return outputs


def check_rebuilt(described: dict[str, Any], nodes: Sequence[Any], added: Mapping[str, type]) -> None:
    """Refuse ops that a loaded graph would not have as they are."""
    preparation = _Preparation({}, added)
    seen = set()
    for of_node, node in zip(described["nodes"], nodes, strict=True):
        op = of_node["op"]
        if "inner" in op:
            check_rebuilt(op["inner"], inner_nodes(node.op), added)
            continue
        key = (repr(op), *(id(x) if isinstance(x, Constant) else x.type for x in node.inputs))
        if key in seen:
            continue
        seen.add(key)
        checked = ml.op_from_json(preparation.op(op, of_node["outputs"]))
        checked(*(x if isinstance(x, Constant) else x.type() for x in node.inputs))
        if not _is_same(checked.op, node.op):
            raise GraphFileError(f"A file can't hold {node.op} as it is: it would come back as {checked.op}.")


def inner_nodes(op: Any) -> list[Apply[Any]]:
    """Return the nodes inside an op that holds a graph, in the order that the engine describes them."""
    nodes: list[Apply[Any]] = io_toposort(op.inner_inputs, op.inner_outputs)
    return nodes


def _is_same(one: Op, other: Op) -> bool:
    if isinstance(other, Blockwise) and isinstance(one, Blockwise):
        return one.signature == other.signature and _is_same(one.core_op, other.core_op)
    if isinstance(other, SymbolicOp):
        names = getattr(other, "__props__", None) or ()
        return type(one) is type(other) and all(getattr(one, n) == getattr(other, n) for n in names)
    return bool(one == other)


def _complete_graph(
    graph: dict[str, Any],
    inputs: Sequence[Variable[Any, Any]],
    outputs: Sequence[Variable[Any, Any]],
    tensors: dict[str, np.ndarray],
) -> dict[str, Any]:
    nodes = io_toposort(inputs, outputs)
    for of_node, node in zip(graph["nodes"], nodes, strict=True):
        of_node["op"] = _complete_op(of_node["op"], node.op, tensors)
    references = [reference for of_node in graph["nodes"] for reference in of_node["inputs"]]
    for reference in (*references, *graph["outputs"]):
        constant = reference.get("const", {})
        size = np.prod(constant["type"]["shape"]) if constant.get("type", {}).get("kind") == "tensor" else 0
        if size > LARGEST_INLINE:
            name = f"constants.{len(tensors)}"
            tensors[name] = np.array(_values(constant), constant["type"]["dtype"]).reshape(
                constant["type"]["shape"]
            )
            reference["const"] = {"type": constant["type"], "tensor": name}
    return graph


def _complete_op(described: dict[str, Any], op: Any, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    path = path_of(op)
    if isinstance(op, Blockwise):
        core_types = op.core_op.input_types if isinstance(op.core_op, OpFromGraph) else []
        return {
            "family": "pytensor_rope.blockwise",
            "core_op": _complete_op(described["core_op"], op.core_op, tensors),
            "core_inputs": [ml.type_to_json(of_input) for of_input in core_types],
            "signature": op.signature,
        }
    if path in LEAVES:
        props = {name: ml.prop_to_json(getattr(op, name)) for name in LEAVES[path]}
        return {"family": "leaf", "type": path, "props": props}
    if "inner" in described:
        if INNER_GRAPHS.get(path):
            described["props"] = {name: ml.prop_to_json(getattr(op, name)) for name in INNER_GRAPHS[path]}
        _complete_graph(described["inner"], op.inner_inputs, op.inner_outputs, tensors)
    return described


def _values(constant: dict[str, Any]) -> list[Any]:
    return flat_values(constant["value"], constant["type"], "a constant")


class _Preparation:
    """Makes of a checked description what the engine builds from: arrays as constants, nodes around ops."""

    def __init__(self, tensors: Mapping[str, np.ndarray], added: Mapping[str, type]) -> None:
        self._tensors = tensors
        self._added = added
        self._budget = _Budget()

    def graph(self, described: dict[str, Any]) -> dict[str, Any]:
        return {
            "inputs": described["inputs"],
            "nodes": [
                {
                    "op": self.op(node["op"], node["outputs"]),
                    "inputs": [self._reference(reference) for reference in node["inputs"]],
                }
                for node in described["nodes"]
            ],
            "outputs": [self._reference(reference) for reference in described["outputs"]],
        }

    def op(self, described: dict[str, Any], output_types: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "family": "pytensor_rope.node",
            "op": self._op(described),
            "outputs": output_types,
            "budget": self._budget,
        }

    def _op(self, described: dict[str, Any]) -> dict[str, Any]:
        prepared = dict(described)
        if "type" in prepared:
            prepared["type"] = MOVED.get(prepared["type"], prepared["type"])
        if "inner" in prepared:
            prepared["inner"] = self.graph(prepared["inner"])
        if "core_op" in prepared:
            prepared["core_op"] = self._op(prepared["core_op"])
            prepared["budget"] = self._budget
        if prepared["family"] == "leaf" and prepared["type"] in self._added:
            return {
                "family": "pytensor_rope.added",
                "class": self._added[prepared["type"]],
                "props": prepared["props"],
            }
        return prepared

    def _reference(self, reference: dict[str, Any]) -> dict[str, Any]:
        constant = reference.get("const")
        if constant is None or constant["type"]["kind"] == "none":
            return reference
        of_constant = constant["type"]
        if "tensor" in constant:
            value = tensor_of_type(self._tensors, constant["tensor"], of_constant)
        else:
            value = np.array(_values(constant), of_constant["dtype"]).reshape(of_constant.get("shape", ()))
        return {"const": {"type": of_constant, "value": value}}


def tensor_of_type(tensors: Mapping[str, np.ndarray], name: str, of_tensor: dict[str, Any]) -> np.ndarray:
    """Return a tensor of the weights, refusing one that isn't there or is of another type."""
    check_type(of_tensor, "the type")
    if of_tensor["kind"] != "tensor" or name not in tensors:
        raise GraphFileError(f"The weights have no tensor {name!r} of this type.")
    array, shape = tensors[name], of_tensor["shape"]
    fits = len(shape) == array.ndim and all(
        size in (None, own) for size, own in zip(shape, array.shape, strict=True)
    )
    if str(array.dtype) != of_tensor["dtype"] or not fits:
        raise GraphFileError(
            f"The tensor {name!r} must be {of_tensor['dtype']} of shape {shape}; got {array.dtype} of "
            f"{list(array.shape)}."
        )
    return array


class _Budget:
    """What has been computed while a graph is built, which a file could ask for without end."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._n_frequency = 0
        self._n_index = 0

    def charge(self, op: Any, inputs: Sequence[Any]) -> None:
        """Count what an op computes from static shapes when its node is made, refusing more than enough."""
        if isinstance(op, Angles):
            d = (inputs[1].type.shape[-1] or 0) if op.rotary_dim is None else op.rotary_dim
            key = (d, *(getattr(op, name) for name in ("base", "scaling")))
            self._n_frequency += 0 if key in self._seen else d  # computed once
            self._seen.add(key)
        elif isinstance(op, AxisIndices):
            self._n_index += inputs[0].type.shape[op.axis] or 0
        if self._n_frequency > _MOST_FREQUENCIES or self._n_index > _MOST_INDICES:
            raise GraphFileError(f"{op} and those before would compute too much while the graph is built.")


class _CheckedNode:
    """What the engine calls as an op: one node, with outputs of the types that the file gives."""

    def __init__(self, op: Any, output_types: list[dict[str, Any]], budget: "_Budget") -> None:
        self.op = op
        self._budget = budget
        self._output_types = output_types

    def __call__(self, *inputs: Variable[Any, Any]) -> list[Variable[Any, Any]]:
        outputs = self._build(inputs)
        if len(outputs) != len(self._output_types):
            raise GraphFileError(f"{self.op} has {len(outputs)} outputs, not {len(self._output_types)}.")
        return [
            self._as_declared(output, declared)
            for output, declared in zip(outputs, self._output_types, strict=True)
        ]

    def _build(self, inputs: Sequence[Variable[Any, Any]]) -> list[Variable[Any, Any]]:
        self._budget.charge(self.op, inputs)
        if not isinstance(self.op, _FOLDING):
            built: list[Variable[Any, Any]] = self.op(*inputs, return_list=True)[0].owner.outputs
            return built
        stand_ins = [_without_history(x) for x in inputs]
        node = self.op.make_node(*stand_ins)
        if len(node.inputs) != len(inputs) or any(
            own is not stand_in for own, stand_in in zip(node.inputs, stand_ins, strict=True)
        ):
            raise GraphFileError(
                f"{self.op} must have inputs of its own types; got {[x.type for x in inputs]}."
            )
        own_outputs: list[Variable[Any, Any]] = Apply(
            node.op, list(inputs), [output.type() for output in node.outputs]
        ).outputs
        return own_outputs

    def _as_declared(self, output: Variable[Any, Any], declared: dict[str, Any]) -> Variable[Any, Any]:
        """Return an output of the declared type: its static shape is stated where the op didn't find it."""
        if not isinstance(output.type, TensorType):
            fits = ml.type_to_json(output.type) == declared
        else:
            fits = declared["kind"] == "tensor" and output.type.dtype == declared["dtype"]
            fits = fits and output.type.ndim == len(declared["shape"])
        if not fits:
            raise GraphFileError(f"{self.op} has an output of {output.type}, not of {declared}.")
        if not isinstance(output.type, TensorType):
            return output
        both = list(zip(output.type.shape, declared["shape"], strict=True))
        if any(None not in pair and pair[0] != pair[1] for pair in both):
            raise GraphFileError(
                f"{self.op} has an output of {output.type}, not of shape {declared['shape']}."
            )
        if all(own is not None or size is None for own, size in both):
            return output
        specified: Variable[Any, Any] = specify_shape(
            output, [size if own is None else own for own, size in both]
        )
        return specified


def _without_history(x: Variable[Any, Any]) -> Variable[Any, Any]:
    """Return a variable of the same type that isn't computed from anything but constants as they stand."""
    if isinstance(x, Constant):
        return x
    if x.owner is not None and isinstance(x.owner.op, MakeVector):
        items = [item if isinstance(item, Constant) else item.type() for item in x.owner.inputs]
        vector: Any = x.owner.op(*items)
        return cast(Variable[Any, Any], vector)
    return cast(Variable[Any, Any], x.type())


@ml.register_from_json("pytensor_rope.node")
def _node_from_json(described: dict[str, Any]) -> Any:
    return _CheckedNode(ml.op_from_json(described["op"]), described["outputs"], described["budget"])


@ml.register_from_json("pytensor_rope.added")
def _added_from_json(described: dict[str, Any]) -> Any:
    return described["class"](**ml.props_from_json(described["props"]))


@ml.register_from_json("pytensor_rope.blockwise")
def _blockwise_from_json(described: dict[str, Any]) -> Blockwise:
    core_op: Any = ml.op_from_json(described["core_op"])
    if isinstance(core_op, SymbolicOp):
        core_inputs = [ml.type_from_json(of_input)() for of_input in described["core_inputs"]]
        described["budget"].charge(core_op, core_inputs)
        core_op = core_op(*core_inputs, return_list=True)[0].owner.op
    return Blockwise(core_op, signature=described["signature"])


@op_to_json.register(CheckAndRaise)
def _check_to_json(op: CheckAndRaise) -> dict[str, Any]:
    return {
        "family": "pytensor_rope.check",
        "type": path_of(op),
        "exception": op.exc_type.__name__,
        "message": op.msg,
    }


@ml.register_from_json("pytensor_rope.check")
def _check_from_json(described: dict[str, Any]) -> CheckAndRaise:
    if described["type"] == path_of(Assert()):
        return Assert(described["message"])
    return CheckAndRaise(EXCEPTIONS[described["exception"]], described["message"])


def check_ops(nodes: Sequence[Apply[Any]], added: Mapping[str, type]) -> None:
    """Refuse the ops that a file can't hold, naming them and the way out."""
    for node in nodes:
        _check_op(node.op, added)


def _check_op(op: Any, added: Mapping[str, type]) -> None:
    path = path_of(op)
    if isinstance(op, Blockwise):
        _check_op(op.core_op, added)
    elif isinstance(op, Scan):
        check_ops(inner_nodes(op), added)
    elif (
        isinstance(op, OpFromGraph)
        and not isinstance(op, SymbolicOp)
        and (path in INNER_GRAPHS or path in added)
    ):
        if op.pullback_overrides is not None or op.pushforward_overrides is not None:
            raise GraphFileError(
                f"{op} has a gradient of its own, a Python function, which a file can't hold. Make it a "
                "SymbolicOp, whose class has the gradient, and pass that class in allow."
            )
        check_ops(inner_nodes(op), added)
    elif not isinstance(op, Elemwise | CheckAndRaise) and path not in LEAVES and path not in added:
        raise GraphFileError(
            f"A graph file can't hold {op} ({path}): it would have to keep Python code, or its class is not "
            "known to be safe. Build that part in the process that loads the graph; or, if it is an op "
            "described by plain props, pass its class in allow, to save_graph and load_graph."
        )
