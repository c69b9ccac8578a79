"""Options and helpers of the whole suite: above all, the backends that a test runs on."""

import gc
import sys
from importlib.util import find_spec

import numpy as np
import pytest

BACKENDS = ("c", "numba", "jax", "mlx")
FLOAT16_BACKENDS = ("c", "jax", "mlx")
# Arguments of tests that run on some of the backends only.
SUBSETS = {
    "float16_backend": FLOAT16_BACKENDS,
    "scan_backend": ("c", "numba"),  # JAX scans a fixed number of steps only, MLX not at all.
    "scanning_backend": ("c", "numba", "jax"),  # JAX scans where the number of steps is fixed.
    "tracing_backend": ("jax", "mlx"),  # Those whose arrays may differ in dtype from their types.
}
DTYPES = ("float16", "float32", "float64")


def pytest_addoption(parser):
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAMES",
        help="backends to test on: c, numba, jax, mlx or all; commas or several options. Default: all.",
    )


def pytest_configure(config):
    chosen_backends(config)


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back():
    """Let go of what the tests of a file have left: models in cycles, and arrays that MLX would use again."""
    yield
    gc.collect()
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].clear_cache()


# What takes longest to compile comes first, so that no process is left with it at the end.
LONGEST_FIRST = (
    *("test_smollm2", "test_unrotated_keys", "test_decoder", "test_cache", "test_stream", "test_lowering"),
)


def pytest_collection_modifyitems(config, items):
    others = set(BACKENDS) - set(chosen_backends(config))
    left_out = {item for item in items if others & set(backends_of(item))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]

    def rank(item):
        name = item.path.stem
        return next(
            (i for i, start in enumerate(LONGEST_FIRST) if name.startswith(start)), len(LONGEST_FIRST)
        )

    items.sort(key=rank)


def backends_of(item):
    """Return the backends among a test's parameters, also where the test lists them itself."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return [parameters[name] for name in ("backend", *SUBSETS) if name in parameters]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """
    Keep a file's tests on one backend in one worker: compiled functions are kept in a process.

    The examples and the documentation share nothing, and fill the gaps at the end.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndBackend(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            parameters = test.partition("[")[2].rstrip("]").split("-")
            backend = next((name for name in parameters if name in BACKENDS), None)
            alone = file.endswith(("test_docs.py", "test_examples.py"))
            return nodeid if alone else f"{file} on {backend}"

    config.option.loadscopereorder = False
    return ByFileAndBackend(config, log)


def pytest_generate_tests(metafunc):
    """Run a test that takes ``backend`` on each, with ``dtype`` too in each dtype the backend has."""
    chosen = chosen_backends(metafunc.config)
    names = set(metafunc.fixturenames)
    parametrized = {
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    }
    for name in names & set(SUBSETS):
        backends = [backend for backend in chosen if backend in SUBSETS[name]]
        metafunc.parametrize(name, [on(backend) for backend in backends], scope="session")
    if "backend" not in names or "backend" in parametrized:
        return
    if "dtype" not in names or "dtype" in parametrized:
        metafunc.parametrize("backend", [on(backend) for backend in chosen], scope="session")
        return
    pairs = [
        on(backend, dtype)
        for backend in chosen
        for dtype in DTYPES
        if dtype != "float16" or backend in FLOAT16_BACKENDS
    ]
    metafunc.parametrize(("backend", "dtype"), pairs, scope="session")


def chosen_backends(config):
    given = config.getoption("--backend") or ["all"]
    names = [name.strip() for option in given for name in option.split(",")]
    unknown = sorted(set(names) - {*BACKENDS, "all"})
    if unknown:
        raise pytest.UsageError(f"--backend takes {', '.join(BACKENDS)} or all; got {', '.join(unknown)}")
    return [backend for backend in BACKENDS if backend in names or "all" in names]


def on(backend, *others):
    """Return the parameters of a test on one backend, skipped where it is not installed."""
    missing = backend != "c" and find_spec(backend) is None
    skip = pytest.mark.skipif(missing, reason=f"{backend} is not installed")
    return pytest.param(backend, *others, marks=[skip])


def on_all_backends(usual):
    """Return the parameters of a test of some cases, slow on backends but the ``usual`` of each case."""
    return [
        pytest.param(
            case, backend, marks=[*on(backend).marks, *([] if backend in of_case else [pytest.mark.slow])]
        )
        for case, of_case in usual.items()
        for backend in BACKENDS
    ]


def compile_for(inputs, outputs, backend):
    """Compile for one backend, as a user would; outputs come back as NumPy arrays."""
    from pytensor_rope import function

    return function(inputs, outputs, backend=backend)


def dtypes_at_run_time(compiled, *args):
    """Return the dtypes of what the linker itself computes, before anything is made of it."""
    outputs = compiled.compiled(*args)
    return [str(output.dtype).removeprefix("mlx.core.") for output in outputs]


def random(seed, *shape, dtype="float64"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def types_within(values):
    """Return the types of plain values, those in nested tuples included."""
    nested = (types_within(value) if isinstance(value, tuple) else {type(value)} for value in values)
    return set().union(*nested)
