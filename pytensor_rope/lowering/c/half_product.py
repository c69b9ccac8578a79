"""Products of float16 matrices in C: NumPy multiplies them without its BLAS."""

from typing import Any, override

from pytensor.graph.basic import Apply
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Dot

from pytensor_rope.lowering.c.kernel import register
from pytensor_rope.lowering.c.matrix_product import MatrixProductKernel


class HalfProductKernel(MatrixProductKernel):
    """A product whose sums are in float32."""

    headers = ("parallel.h", "multiply.h", "row_product.h", "half_product.h")
    function = "half_product"

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        a, b = inputs
        if a.shape[:-2] != b.shape[:-2]:
            raise ValueError("there must be as many matrices in one stack as in the other")
        output_storage[0][0] = (a.astype("float32") @ b.astype("float32")).astype("float16")


def _lower(op: Any, node: Apply[Any]) -> list[Any] | None:
    if any(x.type.dtype != "float16" for x in node.inputs):
        return None
    return HalfProductKernel().make_node(*node.inputs).outputs


register(Dot, _lower)
register(BatchedDot, _lower)
