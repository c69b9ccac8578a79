"""What the C kernels share: where their source is, how it is called, and what they replace."""

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, ClassVar, override

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.c.op import COp

from pytensor_rope.base import computation_dtype

# Part of every cache key, with the kernel's source: raise it whenever the way a kernel is called changes.
_CALL_VERSION = 1


class Kernel(COp):
    """
    An op in C, called as one function of its input arrays, its output arrays and its parameters.

    A subclass names the headers with its source and the function template in them. The function returns 0, or
    -1 with a Python exception set. There is one output, like the first input, unless a subclass says
    otherwise.
    """

    _f16_ok = True

    __props__: ClassVar[tuple[str, ...]]
    headers: ClassVar[tuple[str, ...]]
    function: ClassVar[str]

    def template_types(self, node: Apply[Any]) -> list[str]:
        """Return the C types that the function template is instantiated for."""
        return stored_and_computed(node.inputs[0].type.dtype)

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[Any]:
        """Return the outputs' shapes."""
        return [shapes[0]]

    @override
    def make_node(self, *inputs: Any) -> Apply[Any]:
        return Apply(self, list(inputs), [inputs[0].type()])

    @override
    def c_headers(self, **kwargs: Any) -> list[str]:
        return ["<algorithm>", "<cmath>", "<cstring>", "<limits>", "<new>", "<vector>"]

    @override
    def c_compile_args(self, **kwargs: Any) -> list[str]:
        return ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-pthread"]

    @override
    def c_no_compile_args(self, **kwargs: Any) -> list[str]:
        # PyMC sets these for every op; ours catch what memory there is none for.
        return ["-fno-exceptions", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"]

    @override
    def c_support_code(self, **kwargs: Any) -> str:
        return _source(self.headers)

    @override
    def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        arguments = [*inputs, *(f"&{output}" for output in outputs)]
        if "params" in sub:
            arguments += [f"{sub['params']}->{prop}" for prop in self.__props__]
        types = ", ".join(self.template_types(node))
        template = f"{self.function}<{types}>" if types else self.function
        call = f"{template}({', '.join(arguments)})"
        return f"if ({call} != 0) {{\n    {sub['fail']}\n}}\n"

    @override
    def c_code_cache_version(self) -> tuple[int | str, ...]:
        return (_CALL_VERSION, _digest(self.headers))


def register(
    op_type: type[Op],
    lower: Callable[[Any, Apply[Any]], list[Any] | None],
    tags: Sequence[str] = ("fast_run", "cxx_only"),
) -> None:
    """Have modes with one of the tags replace ops of a type by what ``lower`` returns, if anything."""

    @node_rewriter([op_type])
    def lower_node(fgraph: Any, node: Apply[Any]) -> Any:
        return lower(node.op, node)

    # Just before fusion, which runs at 49: all that rewrites whole ops has been done by then.
    name = f"lower_{op_type.__name__}_for_{tags[0]}"
    optdb.register(name, dfs_rewriter(lower_node), *tags, position=48.9)


def c_type(dtype: str) -> str:
    """Return the kernels' C type for a dtype."""
    return "half" if dtype == "float16" else f"npy_{dtype}"


def stored_and_computed(dtype: str) -> list[str]:
    """Return the C types of an array's elements and of what is computed from them."""
    return [c_type(dtype), c_type(computation_dtype(dtype))]


@cache
def _source(headers: tuple[str, ...]) -> str:
    folder = files(__package__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("arrays.h", *headers))


@cache
def _digest(headers: tuple[str, ...]) -> str:
    """Return a digest of a kernel's source, so that no cached module outlives it."""
    return sha256(_source(headers).encode()).hexdigest()
