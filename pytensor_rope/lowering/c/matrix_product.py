"""What the products of matrices in C share."""

from typing import Any, override

from pytensor.graph.basic import Apply

from pytensor_rope.lowering.c.kernel import Kernel


class MatrixProductKernel(Kernel):
    """The product of two matrices, or of two stacks of them, one by one."""

    __props__ = ()

    @override
    def make_node(self, *inputs: Any) -> Apply[Any]:
        a, b = inputs
        shape = (*a.type.shape[:-1], b.type.shape[-1])
        return Apply(self, [a, b], [a.type.clone(shape=shape)()])

    @override
    def infer_shape(self, node: Apply[Any], shapes: Any) -> list[Any]:
        a, b = shapes
        return [(*a[:-1], b[-1])]
