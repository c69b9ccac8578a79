"""Products of matrices in C: those of one row read the matrix on as many cores as there are."""

from typing import Any, override

from pytensor.graph.basic import Apply
from pytensor.tensor.math import Dot

from pytensor_rope.backends import MATRIX_PRODUCTS
from pytensor_rope.base import FLOAT_DTYPES
from pytensor_rope.lowering.c.kernel import Kernel, register


class ProductKernel(Kernel):
    """The product of two matrices; float16 has a kernel of its own."""

    __props__ = ()
    headers = ("parallel.h", "multiply.h", "row_product.h", "product.h")
    function = "matrix_product"

    @override
    def make_node(self, *inputs: Any) -> Apply[Any]:
        a, b = inputs
        shape = (*a.type.shape[:-1], b.type.shape[-1])
        return Apply(self, [a, b], [a.type.clone(shape=shape)()])

    @override
    def infer_shape(self, node: Apply[Any], shapes: Any) -> list[Any]:
        (rows, _), (_, columns) = shapes
        return [(rows, columns)]

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
