"""What the documentation shows runs as it stands."""

import csv
import doctest
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reference

ROOT = Path(__file__).parents[1]
MODULES = (
    *("attention", "backends", "base", "cache", "config", "decoder", "layout", "model", "norm"),
    *("rotary", "sampling", "stream", "tokenizer", "checkpoints", "checkpoints.rope"),
    *(f"frequencies.{name}" for name in ("axes", "decay", "length", "resolve", "static")),
)
PAGES = ("README.md", "docs/getting_started.md", "docs/concepts.md", "docs/streams.md", "docs/backends.md")
CONSOLE_PAGES = ("docs/frequencies.md", "docs/accuracy.md")


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"pytensor_rope.{name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks(page, capsys, tmp_path, monkeypatch):
    """Run a page's Python blocks one after the other, the model's on the backend that compiles fastest."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)  # some write files
    names = {}
    for block in blocks:
        block = block.replace('compile("numba"', 'compile("jax"').replace("max_tokens=200", "max_tokens=5")
        exec(block, names)


def example(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def attended_by_the_last_of(tokens, sinks=2, window=6):
    """Return what the examples' last token gets, ``(1, n_head, 1, head_dim)``."""
    rng = np.random.default_rng(0)
    drawn = [[rng.standard_normal((n_head, 16)) for n_head in (4, 2, 2)] for _ in range(tokens)]
    q, k, v = (np.stack(values, axis=1).astype("float32") for values in zip(*drawn, strict=True))
    return reference.stream_attention(q, k, v, sinks, window, first=tokens - 1)[None]


@pytest.mark.parametrize("name", ["own_graph", "shared_state"])
def test_a_cache_in_a_graph_of_ones_own(backend, name, monkeypatch):
    output = example(name, monkeypatch).main(backend)
    np.testing.assert_allclose(output, attended_by_the_last_of(20), atol=1e-5, rtol=0)


def test_a_cache_in_a_scan(scanning_backend, monkeypatch):
    output = example("scan_state", monkeypatch).main(scanning_backend)
    np.testing.assert_allclose(output, attended_by_the_last_of(20), atol=1e-5, rtol=0)


class FlatModel:
    """A model to which all tokens are alike, and that is interrupted before its third text."""

    def __init__(self):
        self.tokenizer = SimpleNamespace(encode=lambda text: [ord(letter) for letter in text])
        self.compiled = []
        self.interrupted = False

    def compile(self, backend, **settings):
        if len(self.compiled) == 2 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        self.compiled.append(settings)
        return SimpleNamespace(score=lambda ids, progress: np.full(len(ids) - 1, np.log(len(self.compiled))))


def test_perplexities_are_kept_through_an_interruption(tmp_path, monkeypatch, capsys):
    perplexity, model = example("streaming_perplexity", monkeypatch), FlatModel()
    monkeypatch.setattr(perplexity.rope, "load_model", lambda name: model)
    (tmp_path / "text").write_text("some text " * 9)
    output = tmp_path / "out"
    options = f"--text {tmp_path / 'text'} --tokens 50 --sinks 4 --window 8 --output {output}"
    monkeypatch.setattr(sys, "argv", ["streaming_perplexity.py", *options.split()])
    perplexity.main()
    assert "interrupted: 2 of " in capsys.readouterr().out
    perplexity.main()
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if "perplexity" in line][:2] == ["1.00", "2.00"]
    with output.with_suffix(".csv").open(newline="") as file:
        (_, _, *names), *rows = csv.reader(file)
    assert names[:3] == ["dense", "cache 4+8", "absolute 4+8"]
    assert len(rows) == 49
    assert rows[0][:3] == ["1", str(ord("o")), "0.000000"]
    assert model.compiled[-1] == {"sinks": 0, "window": 12}
    (tmp_path / "text").write_text("another text " * 9)
    with pytest.raises(SystemExit, match="holds another text or model"):
        perplexity.main()


def test_a_running_mean(monkeypatch):
    mean = example("streaming_perplexity", monkeypatch).running_mean
    np.testing.assert_allclose(mean(np.array([1.0, 3.0, 5.0, 1.0]), 2), [2, 4, 3])
    np.testing.assert_allclose(mean(np.array([1.0, 3.0]), 5), [2])


@pytest.mark.parametrize("page", CONSOLE_PAGES)
def test_console_blocks(page):
    """Run a page's console sessions one after the other, and compare what they show."""
    blocks = re.findall(r"^```pycon\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    assert session.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(session).failed == 0
