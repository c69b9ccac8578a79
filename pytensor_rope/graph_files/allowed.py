"""
The ops that a graph file may name: exact class paths, and what each of their props may be.

An op is rebuilt by calling its class with its props, so a class is here only if its constructor takes just
these and does nothing but keep them. Missing are classes that keep Python functions (``as_op``, ``Print``,
the optimizers), C sources (``ExternalCOp``) or in-place variants that rewrites make. A row of
:data:`LEAVES` that PyTensor moves to another module gets an entry in :data:`MOVED`, so that old files load.
"""

from typing import Any

from pytensor_rope.activations import ACTIVATIONS
from pytensor_rope.frequencies import SCHEMES
from pytensor_rope.graph_files.rules import (
    MOST_AXES,
    MOST_ITEMS,
    Rule,
    axes,
    axis,
    boolean,
    count,
    dtype,
    either,
    indices,
    integer,
    ndim,
    no,
    number,
    one_of,
    optional,
    plain,
    positive,
    real_dtype,
    text,
    tuple_of,
)
from pytensor_rope.rotate import PAIRINGS

# Paths of older versions of PyTensor, as files have them, and what they are now.
MOVED: dict[str, str] = {}

EXCEPTIONS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (ArithmeticError, AssertionError, IndexError, NotImplementedError, RuntimeError)
} | {error.__name__: error for error in (TypeError, ValueError, ZeroDivisionError)}

_triangle = {"lower": boolean, "overwrite_a": no}
_solve = {"lower": boolean, "b_ndim": one_of(1, 2), "overwrite_b": no}
_random = {"name": text, "signature": text, "dtype": dtype, "inplace": no}
_reduce = {"axis": axes, "dtype": optional(dtype), "acc_dtype": optional(dtype)}
_sort = {"kind": one_of("quicksort", "mergesort", "heapsort", "stable"), "axis": axis}

_PYTENSOR: dict[str, dict[str, dict[str, Rule]]] = {
    "pytensor.compile.ops": {"DeepCopyOp": {}, "ViewOp": {}},
    "pytensor.conditional.op": {"IfElse": {"n_outs": count, "as_view": no}},
    "pytensor.gradient": {
        "DisconnectedGrad": {},
        "GradClip": {"clip_lower_bound": number, "clip_upper_bound": number},
        "GradScale": {"multiplier": number},
        "UndefinedGrad": {},
        "ZeroGrad": {},
    },
    "pytensor.tensor.basic": {
        "ARange": {"dtype": dtype},
        "Alloc": {},
        "AllocDiag": {"axis1": axis, "axis2": axis, "offset": integer(-MOST_ITEMS, MOST_ITEMS)},
        "AllocEmpty": {"dtype": dtype},
        "Choose": {"mode": one_of("raise", "wrap", "clip")},
        "ExtractDiag": {
            "axis1": axis,
            "axis2": axis,
            "offset": integer(-MOST_ITEMS, MOST_ITEMS),
            "view": boolean,
        },
        "Eye": {"dtype": dtype},
        "Join": {"axis": axis},
        "MakeVector": {"dtype": dtype},
        "Nonzero": {},
        "PermuteRowElements": {"inverse": boolean},
        "ScalarFromTensor": {},
        "Split": {"len_splits": count, "axis": axis},
        "TensorFromScalar": {},
    },
    "pytensor.tensor.blas.batched": {"BatchedDot": {}},
    "pytensor.tensor.elemwise": {
        "DimShuffle": {
            "input_ndim": ndim,
            "new_order": tuple_of(either(integer(0, MOST_AXES), one_of("x")), MOST_AXES),
        }
    },
    "pytensor.tensor.extra_ops": {
        "Bartlett": {},
        "CpuContiguous": {},
        "CumOp": {"axis": optional(axis), "mode": one_of("add", "mul")},
        "FillDiagonal": {},
        "FillDiagonalOffset": {},
        "RavelMultiIndex": {"mode": one_of("raise", "wrap", "clip"), "order": one_of("C", "F")},
        "Repeat": {"axis": axis},
        "SearchsortedOp": {"side": one_of("left", "right")},
        "Unique": {
            "return_index": boolean,
            "return_inverse": boolean,
            "return_counts": boolean,
            "axis": optional(axis),
        },
        "UnravelIndex": {"order": one_of("C", "F")},
    },
    "pytensor.tensor.fourier": {"Fourier": {}},
    "pytensor.tensor.linalg.constructors": {"BlockDiagonal": {"n_inputs": count}},
    "pytensor.tensor.linalg.decomposition.cholesky": {"Cholesky": _triangle},
    "pytensor.tensor.linalg.decomposition.eigen": {
        "Eig": {},
        "Eigh": _triangle | {"overwrite_b": no, "driver": one_of("evr", "evd")},
        "Eigvalsh": _triangle | {"overwrite_b": no},
    },
    "pytensor.tensor.linalg.decomposition.lu": {
        "LU": {"permute_l": boolean, "overwrite_a": no, "p_indices": boolean},
        "LUFactor": {"overwrite_a": no},
        "PivotToPermutations": {"inverse": boolean},
    },
    "pytensor.tensor.linalg.decomposition.qr": {
        "QR": {"overwrite_a": no, "mode": one_of("full", "r", "economic", "raw"), "pivoting": boolean}
    },
    "pytensor.tensor.linalg.decomposition.svd": {
        "SVD": {"full_matrices": boolean, "compute_uv": boolean, "overwrite_a": no}
    },
    "pytensor.tensor.linalg.inverse": {
        "MatrixInverse": {},
        "MatrixPinv": {"hermitian": boolean},
        "TensorInv": {"ind": ndim},
    },
    "pytensor.tensor.linalg.products": {"Expm": {"overwrite_a": no}, "KroneckerProduct": {}},
    "pytensor.tensor.linalg.solvers.general": {
        "Solve": _solve
        | {
            "assume_a": one_of("gen", "sym", "her", "pos", "diagonal", "tridiagonal", "banded"),
            "overwrite_a": no,
        }
    },
    "pytensor.tensor.linalg.solvers.lstsq": {
        "Lstsq": {},
        "TensorSolve": {"axes": optional(tuple_of(axis, MOST_AXES))},
    },
    "pytensor.tensor.linalg.solvers.psd": {"CholeskySolve": _solve},
    "pytensor.tensor.linalg.solvers.triangular": {"SolveTriangular": _solve | {"unit_diagonal": boolean}},
    "pytensor.tensor.linalg.summary": {"Det": {}, "SLogDet": {}},
    "pytensor.tensor.math": {
        "All": {"axis": axes},
        "Any": {"axis": axes},
        "Argmax": {"axis": axes},
        "Dot": {},
        "Max": {"axis": axes, "initial": boolean},
        "Min": {"axis": axes, "initial": boolean},
        "Prod": _reduce | {"no_zeros_in_input": boolean},
        "ProdWithoutZeros": _reduce,
        "Sum": _reduce,
    },
    "pytensor.tensor.pad": {
        "Pad": {
            "pad_mode": one_of(
                *(
                    "constant",
                    "edge",
                    "linear_ramp",
                    "maximum",
                    "minimum",
                    "mean",
                    "wrap",
                    "symmetric",
                    "reflect",
                )
            ),
            "reflect_type": optional(one_of("even", "odd")),
            "has_stat_length": boolean,
            "static_pad_width": optional(tuple_of(tuple_of(integer(0, 2**20), 2), MOST_AXES)),
        }
    },
    "pytensor.tensor.random.basic": {
        name: _random
        for name in (
            *("BernoulliRV", "BetaBinomialRV", "BetaRV", "BinomialRV", "CategoricalRV", "CauchyRV"),
            *("ChoiceWithoutReplacement", "DirichletRV", "ExponentialRV", "GammaRV", "GenGammaRV"),
            *("GeometricRV", "GumbelRV", "HalfCauchyRV", "HalfNormalRV", "HyperGeometricRV"),
            *("IntegersRV", "InvGammaRV", "LaplaceRV", "LogNormalRV", "LogisticRV", "MultinomialRV"),
            *("NegBinomialRV", "NormalRV", "ParetoRV", "PermutationRV", "PoissonRV", "StudentTRV"),
            *("TriangularRV", "TruncExponentialRV", "UniformRV", "VonMisesRV", "WaldRV", "WeibullRV"),
        )
    }
    | {"MvNormalRV": _random | {"method": one_of("cholesky", "svd", "eigh")}},
    "pytensor.tensor.reshape": {
        "JoinDims": {"start_axis": ndim, "n_axes": ndim},
        "SplitDims": {"axis": ndim},
    },
    "pytensor.tensor.shape": {
        "Reshape": {"ndim": ndim},
        "Shape": {},
        "Shape_i": {"i": ndim},
        "SpecifyShape": {},
    },
    "pytensor.tensor.signal.conv": {
        "Convolve1d": {},
        "Convolve2d": {"method": one_of("direct", "fft", "auto")},
    },
    "pytensor.tensor.sort": {"ArgSortOp": _sort, "SortOp": _sort},
    "pytensor.tensor.special": {
        "LogAddExp": {},
        "LogSoftmax": {"axis": either(optional(axis), axes)},
        "LogSumExp": {"axis": either(optional(axis), axes)},
        "Softmax": {"axis": either(optional(axis), axes)},
        "XLog1PY": {},
        "XLogY": {},
    },
    "pytensor.tensor.subtensor": {
        "AdvancedIncSubtensor": {
            "idx_list": indices,
            "inplace": no,
            "set_instead_of_inc": boolean,
            "ignore_duplicates": boolean,
        },
        "AdvancedSubtensor": {"idx_list": indices},
        "IncSubtensor": {
            "idx_list": indices,
            "inplace": no,
            "set_instead_of_inc": boolean,
            "destroyhandler_tolerate_aliased": tuple_of(tuple_of(count, 2), 2),
        },
        "Subtensor": {"idx_list": indices},
    },
}


def _is_scheme(value: object) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and plain.allows(value) and value[0] in SCHEMES


# Frequencies are computed to 60 digits when such an op is built: 4,096 take a tenth of a second.
_rotary_dim = optional(integer(2, 4096))
_scheme = Rule("a frequency scheme and its fields", lambda value: _is_scheme(value))
_tokens = integer(0, 2**31 - 1)
_heads = integer(1, 2**16)
_rms = {"epsilon": positive, "unit_offset": boolean}

_OURS: dict[str, dict[str, dict[str, Rule]]] = {
    "pytensor_rope.activations": {"SiLU": {}, "TanhGELU": {}},
    "pytensor_rope.angles": {
        "Angles": {
            "rotary_dim": _rotary_dim,
            "base": positive,
            "scaling": _scheme,
            "exact": boolean,
            "dtype": real_dtype,
        },
        "Widen": {"dtype": dtype},
    },
    "pytensor_rope.attention": {
        "SinkAttention": {
            "sinks": _tokens,
            "window": optional(_tokens),
            "scale": optional(number),
            "softcap": optional(positive),
        }
    },
    "pytensor_rope.base": {"AxisIndices": {"axis": axis}},
    "pytensor_rope.decoder_layer": {
        "DecoderLayer": {
            "weights": tuple_of(text, 64),
            "n_head": _heads,
            "n_kv_head": _heads,
            "norm": one_of("rms", "layer"),
            "unit_offset": boolean,
            "epsilon": positive,
            "residual": one_of("sequential", "parallel"),
            "residual_scale": number,
            "activation": one_of(*ACTIVATIONS),
            "pairing": one_of(*PAIRINGS),
            "rotary_dim": either(one_of(0), integer(2, 4096)),
            "caches_rotated_keys": boolean,
            "scale": number,
            "softcap": optional(positive),
            "sinks": _tokens,
            "window": optional(_tokens),
        }
    },
    "pytensor_rope.norm": {"RMSNormalize": _rms, "RMSNormalizeGradient": _rms},
    "pytensor_rope.rotate": {"Rotate": {"pairing": one_of(*PAIRINGS), "rotary_dim": _rotary_dim}},
    "pytensor_rope.write_tokens": {"WriteTokens": {}},
}

LEAVES: dict[str, dict[str, Rule]] = {
    f"{module}.{name}": rules
    for table in (_PYTENSOR, _OURS)
    for module, classes in table.items()
    for name, rules in classes.items()
}

# Ops that hold a graph of their own.
INNER_GRAPHS: dict[str, dict[str, Rule]] = {
    "pytensor.compile.builders.OpFromGraph": {},
    "pytensor.tensor.einsum.Einsum": {
        "subscripts": text,
        "path": tuple_of(tuple_of(count, 2), 64),
        "optimized": boolean,
    },
    "pytensor.tensor.symbolic.FusibleSymbolicOpDerivative": {},
    "pytensor_rope.base.LayerOpDerivative": {},
}

CHECKS = ("pytensor.raise_op.Assert", "pytensor.raise_op.CheckAndRaise")


def path_of(op: object) -> str:
    """Return the path of an op's class, as files have it."""
    return f"{type(op).__module__}.{type(op).__qualname__}"


def check_added(allow: Any) -> dict[str, type]:
    """
    Return the op classes that a caller allows, by path.

    Raises
    ------
    TypeError
        If one is no class of ops.
    """
    from pytensor.graph.op import Op

    added = {}
    for cls in allow:
        if not (isinstance(cls, type) and issubclass(cls, Op)):
            raise TypeError(f"allow must hold classes of ops; got {cls!r}.")
        added[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return added
