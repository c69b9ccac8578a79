"""Products of matrices in C: those of one row read the matrix on as many cores as there are."""

from typing import Any, override

from pytensor.graph.basic import Apply
from pytensor.tensor.math import Dot

from pytensor_rope.backends import MATRIX_PRODUCTS
from pytensor_rope.base import FLOAT_DTYPES
from pytensor_rope.lowering.c.kernel import register
from pytensor_rope.lowering.c.matrix_product import MatrixProductKernel


class ProductKernel(MatrixProductKernel):
    """The product of two matrices; float16 has a kernel of its own."""

    headers = ("parallel.h", "multiply.h", "row_product.h", "product.h")
    function = "matrix_product"

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any, params: Any = None) -> None:
        a, b = inputs
        output_storage[0][0] = a @ b


def _lower(op: Dot, node: Apply[Any]) -> list[Any] | None:
    a, b = (x.type for x in node.inputs)
    if a.dtype != b.dtype or a.dtype == "float16" or a.dtype not in FLOAT_DTYPES:
        return None
    return ProductKernel().make_node(*node.inputs).outputs


register(Dot, _lower, tags=(MATRIX_PRODUCTS,))
