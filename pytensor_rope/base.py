"""What every layer shares: the layer classes, the op class, and the rules about dtypes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, override

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor import TensorLike
from pytensor.tensor.blockwise import vectorize_node_fallback
from pytensor.tensor.symbolic import TensorSymbolicOp
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

type Tensor = TensorVariable[Any, Any]

FLOAT_DTYPES = ("float16", "float32", "float64")


class Layer(ABC):
    """
    An object that builds the graph of one layer from one input.

    The constructor takes the hyper-parameters and makes the parameters once; each call builds the graph.

    Examples
    --------
    >>> from pytensor_rope import Layer
    >>> class Double(Layer):
    ...     def __call__(self, x):
    ...         return 2 * x
    """

    @abstractmethod
    def __call__(self, x: TensorLike, /) -> Tensor:
        """Build the layer's output for ``x``."""


class VariadicLayer(Layer):
    """
    A layer that takes one input or several.

    Every :class:`VariadicLayer` is a :class:`Layer`, so it fits wherever one input is enough.
    """

    @abstractmethod
    def __call__(self, *inputs: TensorLike) -> Tensor:
        """Build the layer's output for ``inputs``."""


class LayerOpDerivative(OpFromGraph):
    """A gradient of a layer op that its inner graph gave, kept whole as the op is."""

    @property
    def derivative_op_type(self) -> type[OpFromGraph]:
        """The class of this op's own derivatives."""
        return LayerOpDerivative


class LayerOp(TensorSymbolicOp):
    """
    An op defined by its inner graph, which stays whole until a linker lowers or compiles it.

    A subclass gives ``__props__``, plain values only, and ``build_inner_graph``. The props must be given
    by keyword.
    """

    __props__: tuple[str, ...] = ()

    def __init__(self, input_types: Any = None, **props: Any) -> None:
        super().__init__(input_types=input_types, **props)

    @override
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        return super().__call__(*inputs, **kwargs)

    @property
    def derivative_op_type(self) -> type[OpFromGraph]:
        """The class of the derivatives that the inner graph gives."""
        return LayerOpDerivative

    @override
    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients = super().pullback(inputs, outputs, cotangents)
        # The gradient of a cast stays in the wider dtype; an input's has the input's own.
        return [
            g.astype(x.dtype) if isinstance(g.type, TensorType) and x.dtype in FLOAT_DTYPES else g
            for g, x in zip(gradients, inputs, strict=True)
        ]

    @override
    def do_constant_folding(self, fgraph: FunctionGraph, node: Apply[Any]) -> bool:
        # Folding would compile the inner graph for the default linker, only to run it once.
        return False

    def __str__(self) -> str:
        props = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__props__)
        return f"{type(self).__name__}({props})"


class AxisIndices(LayerOp):
    """The indices along one axis of the input, as int32: a range that every linker can make."""

    __props__ = ("axis",)

    axis: int

    @override
    def build_inner_graph(self, *inputs: Tensor) -> list[Any]:
        (x,) = inputs
        size = x.type.shape[self.axis]
        if size is None:
            return [pt.arange(x.shape[self.axis], dtype="int32")]
        return [pt.constant(np.arange(size, dtype="int32"))]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        return [(shapes[0][self.axis],)]

    @override
    def connection_pattern(self, node: Apply[Any]) -> list[list[bool]]:
        return [[False]]


class BroadcastingLayerOp(LayerOp):
    """A layer op whose inputs broadcast over their leading axes, so that most batched calls are one call."""

    def broadcasts(self, batched: list[bool]) -> bool:
        """Return whether one call does, given which inputs have new batch axes."""
        return batched[0]


@_vectorize_node.register(BroadcastingLayerOp)
def _vectorize_broadcasting(
    op: BroadcastingLayerOp, node: Apply[Any], *batched_inputs: Tensor
) -> list[Variable[Any, Any]]:
    """Put the new batch axes before the widest core shape, where the op broadcasts them."""
    core_ndims = [inp.type.ndim for inp in node.inputs]
    has_batch = [x.type.ndim > ndim for x, ndim in zip(batched_inputs, core_ndims, strict=True)]
    if not op.broadcasts(has_batch):
        outputs: list[Variable[Any, Any]] = vectorize_node_fallback(op, node, *batched_inputs).outputs
        return outputs
    widest = max(core_ndims)
    aligned = []
    for core_ndim, batched in zip(core_ndims, batched_inputs, strict=True):
        batch_ndim = batched.type.ndim - core_ndim
        missing = widest - core_ndim if batch_ndim else 0
        aligned.append(pt.expand_dims(batched, tuple(range(batch_ndim, batch_ndim + missing))))
    outputs = op(*aligned, return_list=True)
    return outputs


def axis_indices(x: Tensor, axis: int) -> Tensor:
    """Return the indices along ``axis`` of ``x``, as int32."""
    size = x.type.shape[axis]
    if size is not None:
        return pt.constant(np.arange(size, dtype="int32"))
    indices: Tensor = AxisIndices(axis=axis)(x)
    return indices


def sizes(x: Tensor) -> tuple[Any, ...]:
    """Return ``x``'s shape, each size a number where it is known."""
    return tuple(x.shape[axis] if size is None else size for axis, size in enumerate(x.type.shape))


def named_tensor(x: TensorLike, name: str) -> Tensor:
    """Return ``x`` as a tensor, refusing by its name what is none."""
    try:
        tensor: Tensor = pt.as_tensor(x)
    except (NotImplementedError, TypeError) as error:
        raise TypeError(f"{name} must be a tensor, or what makes one; got {x!r}.") from error
    return tensor


def float_tensor(x: TensorLike, name: str) -> Tensor:
    """Return ``x`` as a tensor, refusing a dtype that is not a real floating point one."""
    tensor = named_tensor(x, name)
    if tensor.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"{name} must be a float16, float32 or float64 tensor; got {tensor.dtype}. Cast it first, "
            f'for example with {name}.astype("float32").'
        )
    return tensor


def computation_dtype(dtype: str) -> str:
    """Return the dtype that statistics and angles are computed in: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def pinned(value: float, dtype: str) -> np.ndarray:
    """Return ``value`` as a constant of exactly ``dtype``, which no other operand's dtype can widen."""
    return np.asarray(value, dtype=dtype)


def resolve_name(name: object, default: str, hyper_parameter: str) -> str:
    """Return the layer's name, refusing a hyper-parameter passed where the name belongs."""
    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"{default}'s name must be a string; got {name!r}. Hyper-parameters are keyword-only: "
            f"{default}({hyper_parameter}={name!r})."
        )
    return name or default
