"""Fetching memory ahead of where it is read, which Numba has no function for."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Bytes ahead: a page, where the processor stops to look ahead on its own.
_AHEAD = 4096


@intrinsic
def fetch_ahead(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Have what is a page further on than ``array[row, column]`` fetched; it may lie outside the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, row_type, column_type = signature.args
        struct = context.make_array(array_type)(context, builder, arguments[0])
        indices = [
            context.cast(builder, index, index_type, types.intp)
            for index, index_type in zip(arguments[1:], (row_type, column_type), strict=True)
        ]
        pointer = cgutils.get_item_pointer(context, builder, array_type, struct, indices, wraparound=False)
        byte, number = ir.IntType(8), ir.IntType(32)
        ahead = builder.gep(builder.bitcast(pointer, byte.as_pointer()), [ir.Constant(number, _AHEAD)])
        # The name of typed pointers, which newer versions of LLVM read as that of their own.
        fetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number]),
            "llvm.prefetch.p0i8",
        )
        to_read, to_keep, data = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(fetch, [ahead, to_read, to_keep, data])
        return context.get_dummy_value()

    return types.void(array, row, column), generate
