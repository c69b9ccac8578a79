"""Nested lists, tuples and dicts, as the arguments and results of JAX's and MLX's functions are."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """Return what lists, tuples and dicts hold, in order; of anything else, itself."""
    if isinstance(tree, Mapping):
        return [leaf for branch in tree.values() for leaf in leaves(branch)]
    if isinstance(tree, list | tuple):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


def leaves_as_in(pattern: Any, tree: Any, name: str) -> list[Any]:
    """Return the leaves of ``tree`` in the order of ``pattern``, refusing one that is nested otherwise."""
    if isinstance(pattern, Mapping):
        if not isinstance(tree, Mapping) or tree.keys() != pattern.keys():
            raise ValueError(f"{name} must be a dict of {', '.join(map(str, pattern))}; got {_shown(tree)}.")
        pairs = [(pattern[key], tree[key], f"{name}[{key!r}]") for key in pattern]
    elif isinstance(pattern, list | tuple):
        if not isinstance(tree, list | tuple) or len(tree) != len(pattern):
            raise ValueError(f"{name} must be {len(pattern)} of them in a list or tuple; got {_shown(tree)}.")
        pairs = [
            (part, branch, f"{name}[{i}]") for i, (part, branch) in enumerate(zip(pattern, tree, strict=True))
        ]
    else:
        return [tree]
    return [leaf for part, branch, path in pairs for leaf in leaves_as_in(part, branch, path)]


def with_leaves(pattern: Any, values: Iterator[Any]) -> Any:
    """Return ``pattern`` with the next of ``values`` in place of each leaf."""
    if isinstance(pattern, Mapping):
        return {key: with_leaves(branch, values) for key, branch in pattern.items()}
    if not isinstance(pattern, list | tuple):
        return next(values)
    branches = [with_leaves(branch, values) for branch in pattern]
    if hasattr(pattern, "_fields"):  # a named tuple
        return type(pattern)(*branches)
    return branches if isinstance(pattern, list) else tuple(branches)


def _shown(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"a dict of {', '.join(map(str, tree)) or 'nothing'}"
    if isinstance(tree, list | tuple):
        return f"a {type(tree).__name__} of {len(tree)}"
    return f"a {type(tree).__name__}"
