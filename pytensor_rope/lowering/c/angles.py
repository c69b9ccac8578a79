"""Angles in C."""

from typing import Any, override

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from pytensor_rope.angles import Angles
from pytensor_rope.lowering.c.kernel import Kernel, c_type, register


class AnglesKernel(Kernel):
    """Cosines and sines of integer positions; the second input holds the frequencies in turns."""

    __props__ = ("dtype",)
    headers = ("parallel.h", "angles.h")
    function = "angles"

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    @override
    def make_node(self, *inputs: Any) -> Apply[Any]:
        position_ids, turns = inputs
        shape = (*position_ids.type.shape, turns.type.shape[1])
        return Apply(self, [position_ids, turns], [TensorType(self.dtype, shape)() for _ in range(2)])

    @override
    def template_types(self, node: Apply[Any]) -> list[str]:
        return [f"npy_{node.inputs[0].type.dtype}", c_type(self.dtype)]

    @override
    def infer_shape(self, node: Apply[Any], shapes: Any) -> list[Any]:
        positions, turns = shapes
        return [(*positions, turns[1])] * 2

    @override
    def perform(self, node: Apply[Any], inputs: Any, output_storage: Any) -> None:
        position_ids, (f_hi, f_lo) = inputs
        wide = position_ids if position_ids.dtype == "uint64" else position_ids.astype("int64")
        p = np.abs(wide).astype("uint64")[..., None]
        if self.dtype == "float64":
            phase = p * f_hi + ((p * f_lo) >> np.uint64(24))
            angle, sign = phase.astype("int64") * (2 * np.pi / 2**64), np.float64(1)
        else:
            phase = ((p * f_hi) >> np.uint64(32)).astype("uint32")
            fold = (phase + np.uint32(2**30)) >> np.uint32(31)
            folded = (phase - (fold << np.uint32(31))).astype("int32").astype("float32")
            angle, sign = folded * np.float32(2 * np.pi / 2**32), np.float32(1) - np.float32(2) * fold
        direction = np.where(wide < 0, -1, 1)[..., None]
        output_storage[0][0] = (np.cos(angle) * sign).astype(self.dtype)
        output_storage[1][0] = (np.sin(angle) * sign * direction).astype(self.dtype)


def _lower(op: Angles, node: Apply[Any]) -> list[Any] | None:
    position_ids = node.inputs[0]
    if op.rotary_dim is None or not op.counts_turns(position_ids.type.dtype):
        return None
    turns = pt.constant(_turns(op, op.rotary_dim))
    return AnglesKernel(op.dtype).make_node(position_ids, turns).outputs


def _turns(op: Angles, rotary_dim: int) -> np.ndarray:
    """Return the frequencies' high words, and the low words that float64 angles need, one row each."""
    if op.dtype == "float64":
        f = op.turns_of(rotary_dim, bits=88)
        return np.array([[word >> 24 for word in f], [word & 0xFFFFFF for word in f]], dtype="uint64")
    f = op.turns_of(rotary_dim, bits=64)
    return np.array([f, [0] * len(f)], dtype="uint64")


register(Angles, _lower)
