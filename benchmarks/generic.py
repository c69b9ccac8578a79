"""The same graph without our lowerings, to compare with."""

from collections.abc import Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort

from pytensor_rope.decoder_layer import DecoderLayer


def generic(outputs: Sequence[Any]) -> list[Any]:
    """
    Return ``outputs`` computed by PyTensor's own ops alone.

    Each of our ops gives way to its inner graph, the definition that its lowerings are tested against. A
    decoder layer stays one op, a plain ``OpFromGraph`` of its inner graph: all layers as one graph would take
    C minutes to compile.
    """
    return _generic(outputs, {})


def _generic(outputs: Sequence[Any], plain: dict[Any, OpFromGraph]) -> list[Any]:
    replaced: dict[Any, Any] = {}
    for node in toposort(outputs):
        inputs = [replaced.get(x, x) for x in node.inputs]
        if isinstance(node.op, DecoderLayer):
            if node.op not in plain:
                inner = node.op.fgraph.unfreeze()
                plain[node.op] = OpFromGraph(inner.inputs, _generic(inner.outputs, plain))
            new: Any = plain[node.op](*inputs, return_list=True)
        elif isinstance(node.op, OpFromGraph):
            inner = node.op.fgraph.unfreeze()
            replacements = dict(zip(inner.inputs, inputs, strict=True))
            new = clone_replace(_generic(inner.outputs, plain), replacements, rebuild_strict=False)
        else:
            new = node.clone_with_new_inputs(inputs, strict=False).outputs
        replaced.update(zip(node.outputs, new, strict=True))
    return [replaced.get(output, output) for output in outputs]
