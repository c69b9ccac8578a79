"""What importing the package loads, and that its public names are all there."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytensor_rope

PACKAGE = Path(pytensor_rope.__file__).parent

# None of these is loaded before it is used.
EXTRAS = (
    *("jax", "jaxlib", "mlx", "numba", "gguf", "tokenizers", "jinja2", "safetensors", "rich", "psutil"),
    *("pytensor_ml", "pymc"),
)

LOADED = f"""
import sys
{{code}}
print(*sorted({{{{name.split(".")[0] for name in sys.modules}}}} & {{{{*{EXTRAS!r}}}}}))
"""


def loaded_by(code, tmp_path):
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", LOADED.format(code=code)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_importing_the_package_loads_no_backend_and_no_extra(tmp_path):
    assert loaded_by("import pytensor_rope", tmp_path) == []


def test_importing_the_package_does_not_import_pytensor(tmp_path):
    code = 'import pytensor_rope; assert "pytensor" not in sys.modules'
    assert loaded_by(code, tmp_path) == []


def test_building_the_layers_loads_no_backend_and_no_extra(tmp_path):
    # Whatever PyTensor itself loads is not this package's doing.
    pytensor_alone = loaded_by("import pytensor, pytensor.tensor", tmp_path)
    code = """
from pytensor_rope import Layer, RMSNorm, RotaryEmbedding, SinkCache, SinkCacheState, VariadicLayer, function
import numpy as np, pytensor.tensor as pt
x = pt.tensor(shape=(1, 1, 3, 8), dtype="float32")
y = RotaryEmbedding(head_dim=8)(RMSNorm(n_in=8)(x), np.arange(3))
cache = SinkCache(1, 3)
state = SinkCacheState(*map(pt.as_tensor, cache.initial_state(1, 1, 8)))
cache.attend(x, x, x, state, rotary=RotaryEmbedding())
pt.grad(y.sum(), x)
"""
    assert loaded_by(code, tmp_path) == pytensor_alone


@pytest.mark.parametrize("name", pytensor_rope.__all__)
def test_every_public_name_resolves(name):
    value = getattr(pytensor_rope, name)
    assert value.__name__.removeprefix("pytensor_rope.") == name
    assert value.__doc__


def test_names_homes_and_type_checking_imports_agree():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    typed = {
        alias.name: node.module.removeprefix("pytensor_rope.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = [name for name, home in typed.items() if home == "pytensor_rope"]
    assert modules == ["frequencies"]
    assert {name: home for name, home in typed.items() if name not in modules} == pytensor_rope._HOMES
    assert sorted(typed) == sorted(pytensor_rope.__all__)
    assert pytensor_rope.__all__ == sorted(pytensor_rope.__all__)
    assert set(pytensor_rope.__all__) <= set(dir(pytensor_rope))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pytensor_rope' has no attribute 'RotaryEmbeding'"):
        pytensor_rope.RotaryEmbeding  # noqa: B018


def test_package_is_typed():
    assert (PACKAGE / "py.typed").exists()
