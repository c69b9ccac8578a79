"""The JAX linker, and the mode that serves our graphs best."""

from collections.abc import Callable
from typing import Any, cast

import jax
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot

from pytensor_rope.lowering.storages import without_values
from pytensor_rope.lowering.transposed import transposed_matrix

# XLA prefers half of that, with which a processor that has it decodes 7 % more slowly.
_CPU_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


class DonatingJAXLinker(JAXLinker):
    """A JAX linker that lets updates of shared variables reuse the memory of their old values."""

    def fgraph_convert(self, fgraph: FunctionGraph, *args: Any, **kwargs: Any) -> Any:
        """Convert the graph, without the copy of each shared value that would be kept with the function."""
        with without_values(fgraph.inputs, kwargs["storage_map"]):
            return super().fgraph_convert(fgraph, *args, **kwargs)

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """
        Compile ``fn``, donating the inputs that updates replace.

        What donates is called from Python alone, as options of the compiler have to be.
        """
        updates = getattr(self.fgraph, "update_mapping", None) or {}
        if self.scalar_shape_inputs or not updates:
            return cast(Callable[..., Any], super().jit_compile(fn))
        donated = sorted(set(updates.values()))
        options = _CPU_OPTIONS if jax.default_backend() == "cpu" else None
        return cast(Callable[..., Any], jax.jit(fn, donate_argnums=donated, compiler_options=options))


@node_rewriter([CAReduce])
def _reduce_as_declared(fgraph: FunctionGraph, node: Apply[Any]) -> list[Any] | None:
    """Have the linker return a reduction in the graph's dtype, not in the one to accumulate in."""
    (x,), dtype = node.inputs, node.outputs[0].type.dtype
    if x.type.dtype != dtype or node.op.acc_dtype in (None, dtype):
        return None
    return [node.op.clone(dtype=dtype, acc_dtype=dtype)(x)]


@node_rewriter([Dot])
def _multiply_as_stored(fgraph: FunctionGraph, node: Apply[Any]) -> list[Any] | None:
    """Multiply one row with the transpose of a matrix as the matrix with a vector, which XLA reads faster."""
    row: Any
    row, matrix = node.inputs[0], transposed_matrix(node.inputs[1])
    if matrix is None or row.type.ndim != 2 or row.type.shape[0] != 1:
        return None
    return [pt.expand_dims(pt.dot(matrix, row[0]), 0)]


def jax_mode() -> Mode:
    """Return PyTensor's JAX mode, with what makes graphs keep their dtypes and read and write less memory."""
    mode = Mode(linker=DonatingJAXLinker(), optimizer=get_mode("JAX")._optimizer)
    # After all rewrites that make reductions, before inner graphs are rewritten in the same way.
    rewriters = [dfs_rewriter(rewriter) for rewriter in (_reduce_as_declared, _multiply_as_stored)]
    return cast(Mode, mode.register(*((rewriter, 49.5) for rewriter in rewriters)))
