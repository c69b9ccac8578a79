"""What the documentation shows runs as it stands."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = (
    *("attention", "backends", "base", "cache", "config", "decoder", "frequencies", "model", "norm"),
    *("rotary", "sampling", "stream", "tokenizer", "checkpoints", "checkpoints.rope"),
)
PAGES = ("README.md", "docs/getting_started.md", "docs/concepts.md", "docs/backends.md")
CONSOLE_PAGES = ("docs/frequencies.md", "docs/accuracy.md")


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"pytensor_rope.{name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks(page, capsys):
    """Run a page's Python blocks one after the other, the model's on the backend that compiles fastest."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    for block in blocks:
        block = block.replace('compile("numba"', 'compile("jax"').replace("max_tokens=200", "max_tokens=5")
        exec(block, names)


@pytest.mark.parametrize("page", CONSOLE_PAGES)
def test_console_blocks(page):
    """Run a page's console sessions one after the other, and compare what they show."""
    blocks = re.findall(r"^```pycon\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    assert session.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(session).failed == 0
