"""The description of a graph: checked as a whole before anything is made of it."""

from collections.abc import Mapping
from typing import Any

from pytensor_ml.serialize.base import prop_from_json
from pytensor_ml.serialize.scan import _SCAN_INFO_FIELDS

from pytensor_rope.graph_files.allowed import CHECKS, EXCEPTIONS, INNER_GRAPHS, LEAVES, MOVED
from pytensor_rope.graph_files.errors import GraphFileError
from pytensor_rope.graph_files.rules import (
    DTYPES,
    MOST_AXES,
    MOST_ITEMS,
    Rule,
    boolean,
    count,
    integer,
    is_integer,
    optional,
    plain,
    text,
    tuple_of,
)

MOST_NODES = 20_000
MOST_NESTED = 16
_LARGEST_DIM = 2**40
_KINDS = ("input", "shared", "constant", "generator")
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_POSITIONS = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "uinteger": 2**32 - 1}
_FLOATS = ("nan", "inf", "-inf")
_slices = tuple_of(tuple_of(integer(-(2**31), 2**31)))
_SCAN_INFO: dict[str, Rule] = {
    field: _slices if field.endswith("slices") else boolean if field == "as_while" else count
    for field in _SCAN_INFO_FIELDS
}


def check_description(description: Any, added: Mapping[str, type]) -> None:
    """
    Refuse a description that isn't one of the current version, or names what isn't allowed.

    Parameters
    ----------
    description : dict
        What ``graph.json`` holds.
    added : mapping of str to type
        The op classes that the caller allows, by path.

    Raises
    ------
    GraphFileError
        At the first thing that is wrong, saying where it is.
    """
    keys = ("format", "format_version", "written_by", "leaves", "graph", "output_names", "digest")
    _object(description, keys, "the description")
    for leaf, where in _items(description["leaves"], "leaves", MOST_NODES):
        _check_leaf(leaf, where)
    for name, where in _items(description["output_names"], "output_names", MOST_NODES):
        _check(optional(text), name, where)
    checker = _GraphChecker(added)
    checker.check_graph(description["graph"], "graph")
    for key, leaves in (("inputs", "leaves"), ("outputs", "output_names")):
        if len(description["graph"][key]) != len(description[leaves]):
            raise GraphFileError(f"{leaves} must have one item for each of the graph's {key}.")


def _check_leaf(leaf: Any, where: str) -> None:
    _object(leaf, ("kind", "name", "value"), where)
    if leaf["kind"] not in _KINDS or not isinstance(leaf["kind"], str):
        raise GraphFileError(f"{where}.kind must be one of {', '.join(_KINDS)}; got {_shown(leaf['kind'])}.")
    _check(optional(text), leaf["name"], f"{where}.name")
    if leaf["kind"] == "input" and leaf["value"] is not None:
        raise GraphFileError(f"{where}.value must be null for an input.")
    if leaf["kind"] in ("shared", "constant"):
        _check(text, leaf["value"], f"{where}.value")
    if leaf["kind"] == "generator" and not _is_generator_state(leaf["value"]):
        raise GraphFileError(f"{where}.value must be the state of one of {', '.join(_GENERATORS)}.")


def _is_generator_state(state: Any) -> bool:
    """Return whether a value is a generator's state, with no position that NumPy would read beyond."""
    named = isinstance(state, dict) and state.get("bit_generator") in _GENERATORS
    return named and _is_part_of_state({key: part for key, part in state.items() if key != "bit_generator"})


def _is_part_of_state(part: Any, name: str = "", depth: int = 0) -> bool:
    if isinstance(part, dict) and set(part) == {"__array__", "dtype"}:
        words, bits = part["__array__"], {"uint32": 32, "uint64": 64}.get(str(part["dtype"]))
        if bits is None or not isinstance(words, list) or len(words) > 624:
            return False
        return all(is_integer(word, 0, 2**bits - 1) for word in words)
    if isinstance(part, dict):
        return depth < 2 and all(_is_part_of_state(value, key, depth + 1) for key, value in part.items())
    return is_integer(part, 0, _POSITIONS.get(name, 2**128 - 1))


class _GraphChecker:
    """The checks of graphs within graphs, which count their nodes together."""

    def __init__(self, added: Mapping[str, type]) -> None:
        self._added = added
        self._n_node = 0
        self._depth = 0

    def check_graph(self, graph: Any, where: str) -> None:
        _object(graph, ("inputs", "nodes", "outputs"), where)
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise GraphFileError(f"{where} is nested deeper than {MOST_NESTED} graphs.")
        inputs = _items(graph["inputs"], f"{where}.inputs", MOST_NODES)
        for of_input, at in inputs:
            check_type(of_input, at)
        n_outputs: list[int] = []
        for node, at in _items(graph["nodes"], f"{where}.nodes", MOST_NODES):
            self._n_node += 1
            if self._n_node > MOST_NODES:
                raise GraphFileError(f"The graph has more than {MOST_NODES:,} nodes.")
            _object(node, ("op", "inputs", "outputs"), at)
            self.check_op(node["op"], f"{at}.op")
            for reference, in_node in _items(node["inputs"], f"{at}.inputs", MOST_NODES):
                self._check_reference(reference, len(inputs), n_outputs, in_node)
            outputs = _items(node["outputs"], f"{at}.outputs")
            if not outputs:
                raise GraphFileError(f"{at}.outputs must have at least one item.")
            for of_output, in_node in outputs:
                check_type(of_output, in_node)
            n_outputs.append(len(outputs))
        for reference, at in _items(graph["outputs"], f"{where}.outputs", MOST_NODES):
            self._check_reference(reference, len(inputs), n_outputs, at)
        self._depth -= 1

    def _check_reference(self, reference: Any, n_input: int, n_outputs: list[int], where: str) -> None:
        """Refuse a reference to anything but an input, an output of an earlier node, or a constant."""
        keys = set(reference) if isinstance(reference, dict) else set()
        if keys == {"const"}:
            check_constant(reference["const"], f"{where}.const")
        elif keys == {"input"}:
            _check(integer(0, n_input - 1), reference["input"], f"{where}.input")
        elif keys == {"node", "out"}:
            _check(integer(0, len(n_outputs) - 1), reference["node"], f"{where}.node")
            _check(integer(0, n_outputs[reference["node"]] - 1), reference["out"], f"{where}.out")
        else:
            raise GraphFileError(f"{where} must be an input, a node's output or a constant.")

    def check_op(self, op: Any, where: str) -> None:
        family = op.get("family") if isinstance(op, dict) else None
        check = self._CHECKS.get(family) if isinstance(family, str) else None
        if check is None:
            raise GraphFileError(
                f"{where}.family must be one of {', '.join(self._CHECKS)}; got {_shown(family)}."
            )
        self._depth += 1
        if self._depth > 2 * MOST_NESTED:
            raise GraphFileError(f"{where} is nested deeper than {MOST_NESTED} ops.")
        check(self, op, where)
        self._depth -= 1

    def _check_plain_op(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "type", "props"), where)
        path = _class_path(op["type"], f"{where}.type")
        if path not in LEAVES and path not in self._added:
            raise _not_allowed(path, f"{where}.type")
        _check_props(op["props"], LEAVES.get(path), f"{where}.props")

    def _check_inner_graph(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "type", "inline", "name", "props", "inner"), where)
        path = _class_path(op["type"], f"{where}.type")
        if path not in INNER_GRAPHS and path not in self._added:
            raise _not_allowed(path, f"{where}.type")
        _check(boolean, op["inline"], f"{where}.inline")
        _check(optional(text), op["name"], f"{where}.name")
        _check_props(op["props"], INNER_GRAPHS.get(path), f"{where}.props")
        self.check_graph(op["inner"], f"{where}.inner")

    def _check_elemwise(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "scalar_op"), where)
        scalar_op = op["scalar_op"]
        if not isinstance(scalar_op, dict) or scalar_op.get("family") not in ("scalar", "scalar_cast"):
            raise GraphFileError(f"{where}.scalar_op must be a scalar op.")
        self.check_op(scalar_op, f"{where}.scalar_op")

    def _check_scalar(self, op: dict[str, Any], where: str) -> None:
        # A name among PyTensor's own instances; the engine looks it up in a table, and imports nothing.
        _object(op, ("family", "type"), where)
        _check(text, op["type"], f"{where}.type")

    def _check_cast(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "dtype"), where)
        _check_dtype(op["dtype"], f"{where}.dtype")

    def _check_scan(self, op: dict[str, Any], where: str) -> None:
        keys = ("family", "inner", "info", "truncate_gradient", "name", "allow_gc", "strict")
        _object(op, keys, where)
        _object(op["info"], tuple(_SCAN_INFO), f"{where}.info")
        for field, rule in _SCAN_INFO.items():
            _check(rule, _decoded(op["info"][field], f"{where}.info.{field}"), f"{where}.info.{field}")
        _check(integer(-1, 2**31), op["truncate_gradient"], f"{where}.truncate_gradient")
        _check(optional(text), op["name"], f"{where}.name")
        _check(boolean, op["allow_gc"], f"{where}.allow_gc")
        _check(boolean, op["strict"], f"{where}.strict")
        self.check_graph(op["inner"], f"{where}.inner")

    def _check_blockwise(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "core_op", "core_inputs", "signature"), where)
        short = Rule("a signature", lambda value: text.allows(value) and len(value) <= 256)
        _check(short, op["signature"], f"{where}.signature")
        for core_input, at in _items(op["core_inputs"], f"{where}.core_inputs"):
            check_type(core_input, at)
        self.check_op(op["core_op"], f"{where}.core_op")

    def _check_check(self, op: dict[str, Any], where: str) -> None:
        _object(op, ("family", "type", "exception", "message"), where)
        _check(Rule(f"one of {', '.join(CHECKS)}", CHECKS.__contains__), op["type"], f"{where}.type")
        known = Rule(
            f"one of {', '.join(EXCEPTIONS)}", lambda name: isinstance(name, str) and name in EXCEPTIONS
        )
        _check(known, op["exception"], f"{where}.exception")
        _check(text, op["message"], f"{where}.message")

    _CHECKS: Mapping[str, Any] = {
        "leaf": _check_plain_op,
        "inner_graph": _check_inner_graph,
        "elemwise": _check_elemwise,
        "scalar": _check_scalar,
        "scalar_cast": _check_cast,
        "scan": _check_scan,
        "pytensor_rope.blockwise": _check_blockwise,
        "pytensor_rope.check": _check_check,
    }


def check_type(of_variable: Any, where: str) -> None:
    """Refuse what isn't the type of a tensor, a scalar, a random generator or None."""
    kind = of_variable.get("kind") if isinstance(of_variable, dict) else None
    if kind == "tensor":
        _object(of_variable, ("kind", "dtype", "shape"), where)
        _check_dtype(of_variable["dtype"], f"{where}.dtype")
        for size, at in _items(of_variable["shape"], f"{where}.shape", MOST_AXES):
            _check(optional(integer(0, _LARGEST_DIM)), size, at)
    elif kind == "scalar":
        _object(of_variable, ("kind", "dtype"), where)
        _check_dtype(of_variable["dtype"], f"{where}.dtype")
    elif kind in ("random_generator", "none") and isinstance(kind, str):
        _object(of_variable, ("kind",), where)
    else:
        raise GraphFileError(
            f"{where}.kind must be tensor, scalar, random_generator or none; got {_shown(kind)}."
        )


def check_constant(constant: Any, where: str) -> None:
    """Refuse a constant whose value, nested lists or the name of a tensor, doesn't fit its type."""
    keys = set(constant) if isinstance(constant, dict) else set()
    if "type" not in keys:
        raise GraphFileError(f"{where} must be a constant.")
    of_constant = constant["type"]
    check_type(of_constant, f"{where}.type")
    kind = of_constant["kind"]
    if kind == "none" and keys == {"type"}:
        return
    if kind == "tensor" and None in of_constant["shape"]:
        raise GraphFileError(f"{where}.type.shape must be known for a constant.")
    if kind == "tensor" and keys == {"type", "tensor"}:
        _check(text, constant["tensor"], f"{where}.tensor")
    elif kind in ("tensor", "scalar") and keys == {"type", "value"}:
        flat_values(constant["value"], of_constant, where)
    else:
        raise GraphFileError(f"{where} must have a value that fits its type.")


def flat_values(value: Any, of_constant: dict[str, Any], where: str) -> list[Any]:
    """Return the numbers in nested lists, refusing what is none of the dtype or not laid out as the shape."""
    level = [value]
    for size in of_constant.get("shape", ()):
        if not all(isinstance(items, list) and len(items) == size for items in level):
            raise GraphFileError(f"{where}.value must be lists of the constant's shape.")
        level = [item for items in level for item in items]
    dtype = of_constant["dtype"]
    if dtype.startswith("complex"):
        raise GraphFileError(f"{where} is complex, which the format has no constants of.")
    if dtype == "bool":
        fits = all(type(item) is bool for item in level)
    elif dtype.startswith("float"):
        level = [float(item["__float__"]) if _is_special_float(item) else item for item in level]
        fits = all(type(item) is float or (type(item) is int and abs(item) < 2**63) for item in level)
    else:
        bits = int(dtype.lstrip("uint"))
        least, most = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        fits = all(type(item) is int and least <= item <= most for item in level)
    if not fits:
        raise GraphFileError(f"{where}.value must be made of numbers of {dtype}.")
    return level


def _is_special_float(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and set(item) == {"__float__"}
        and isinstance(item["__float__"], str)
        and item["__float__"] in _FLOATS
    )


def _check_props(props: Any, rules: Mapping[str, Rule] | None, where: str) -> None:
    """Check an op's props; those of a class that the caller allows may be any plain values."""
    if rules is None:
        if not isinstance(props, dict) or len(props) > 256 or not all(map(str.isidentifier, props)):
            raise GraphFileError(f"{where} must be an object of props by name.")
        rules = dict.fromkeys(props, plain)
    _object(props, tuple(rules), where)
    for name, rule in rules.items():
        _check(rule, _decoded(props[name], f"{where}.{name}"), f"{where}.{name}")


def _decoded(prop: Any, where: str, depth: int = 0) -> Any:
    """Return a prop as the engine will decode it, refusing what it would pass through as it is."""
    if isinstance(prop, dict):
        ((tag, items),) = prop.items() if len(prop) == 1 else ((None, None),)
        known = tag == "__tuple__" or (tag == "__slice__" and isinstance(items, list) and len(items) == 3)
        if not known or not isinstance(items, list) or len(items) > MOST_ITEMS or depth > MOST_NESTED:
            raise GraphFileError(f"{where} must be a plain value, a tuple or a slice; got {_shown(prop)}.")
        for item in items:
            _decoded(item, where, depth + 1)
        return prop_from_json(prop) if depth == 0 else None
    if prop is not None and not isinstance(prop, bool | int | float | str):
        raise GraphFileError(f"{where} must be a plain value, a tuple or a slice; got {_shown(prop)}.")
    return prop


def _class_path(path: Any, where: str) -> str:
    _check(text, path, where)
    moved: str = MOVED.get(path, path)
    return moved


def _check_dtype(value: Any, where: str) -> None:
    _check(
        Rule(f"one of {', '.join(DTYPES)}", lambda name: isinstance(name, str) and name in DTYPES),
        value,
        where,
    )


def _check(rule: Rule, value: Any, where: str) -> None:
    if not rule.allows(value):
        raise GraphFileError(f"{where} must be {rule.description}; got {_shown(value)}.")


def _object(value: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(value, dict) or set(value) != set(keys):
        got = ", ".join(map(_shown, value)) if isinstance(value, dict) else type(value).__name__
        raise GraphFileError(
            f"{where} must be an object of {', '.join(keys) or 'nothing'}; got {got or 'nothing'}."
        )


def _items(value: Any, where: str, most: int = MOST_ITEMS) -> list[tuple[Any, str]]:
    if not isinstance(value, list) or len(value) > most:
        got = f"{len(value):,}" if isinstance(value, list) else type(value).__name__
        raise GraphFileError(f"{where} must be a list of at most {most:,}; got {got}.")
    return [(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _not_allowed(path: str, where: str) -> GraphFileError:
    return GraphFileError(
        f"{where} names {_shown(path)}, which is not among the ops that graph files may hold. If it is an op "
        "of yours, and you trust it, pass its class in allow."
    )


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
