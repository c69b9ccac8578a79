"""What the documentation shows runs as it stands, and its commands and links lead somewhere."""

import argparse
import doctest
import importlib
import re
import runpy
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = (
    *("attention", "backends", "base", "cache", "config", "decoder", "functional", "layout", "model", "norm"),
    *("rotary", "sampling", "sharding", "stream", "tokenizer"),
    *("checkpoints", "checkpoints.base", "checkpoints.rope", "graph_files.files"),
    *(f"frequencies.{name}" for name in ("axes", "decay", "length", "resolve", "static")),
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if "generated" not in path.parts
}
NEEDED = {"docs/pytensor_ml.md": ("pytensor_ml",), "docs/pymc.md": ("pymc",), "docs/jax.md": ("mlx",)}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def pages_with(language):
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"pytensor_rope.{name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks(page, capsys, tmp_path, monkeypatch):
    """Run a page's Python blocks one after the other, the model's on the backend that compiles fastest."""
    for package in ("jax", *NEEDED.get(page, ())):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # some write files
    names = {}
    for block in blocks(page, "python"):
        block = block.replace('compile("numba"', 'compile("jax"').replace("max_tokens=200", "max_tokens=5")
        exec(block, names)


@pytest.mark.parametrize("page", pages_with("pycon"))
def test_console_sessions(page, monkeypatch):
    """Run a page's console sessions one after the other, and compare what they show."""
    monkeypatch.chdir(ROOT)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks(page, "pycon")), {}, page, page, 0)
    assert session.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(session).failed == 0


def test_no_block_goes_untested():
    languages = {match for text in PAGES.values() for match in re.findall(r"^ *```(.*)$", text, re.MULTILINE)}
    assert {name for name in languages if not name.startswith("{")} <= {
        "",
        "python",
        "pycon",
        "console",
        "text",
    }


# Commands


def commands():
    """Return each command of the pages' shell blocks, without prompt, comment and output."""
    found = {}
    for page in pages_with("console"):
        for block in blocks(page, "console"):
            lines = block.splitlines()
            if any(line.startswith("$ ") for line in lines):
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            for line in lines:
                words = shlex.split(line, comments=True)
                if words:
                    found[shlex.join(words)] = words
    return list(found.values())


class Parsed(Exception):
    """Raised where a program has read its arguments."""


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_commands_are_there_and_take_these_options(words, monkeypatch):
    while "=" in words[0]:  # variables of the environment
        words = words[1:]
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert set(targets) <= set(makefile())
    elif program == "pytensor-rope":
        from pytensor_rope.cli.arguments import build_parser

        build_parser().parse_args(arguments)
    elif program == "python" and arguments[:3] == ["-m", "pip", "install"]:
        check_install(arguments[3:])
    elif program == "python" and arguments[0] == "-m":
        if arguments[1] == "pytest":
            return
        run_until_parsed(ROOT / arguments[1] / "__main__.py", arguments[2:], monkeypatch)
    elif program == "python":
        run_until_parsed(ROOT / arguments[0], arguments[1:], monkeypatch)
    else:
        assert program in ("export", "pre-commit")


@cache
def makefile():
    return re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def check_install(arguments):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (package,) = (word for word in arguments if not word.startswith("-"))
    if package.startswith("."):
        assert set(package.removeprefix(".[").removesuffix("]").split(",")) <= set(extras)
    else:
        assert package == re.search(r"^MODEL := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]


def run_until_parsed(script, arguments, monkeypatch):
    """Run a program until it has read its arguments; one that reads none must be given none."""
    if "argparse" not in script.read_text():
        assert not arguments
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, *given):
        parse(parser, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.syspath_prepend(script.parent)
    with pytest.raises(Parsed):
        runpy.run_path(str(script), run_name="__main__")


# Links


@pytest.mark.parametrize("page", PAGES)
def test_links_inside_the_repository_lead_somewhere(page):
    """Links of the form [text](#name) are Sphinx's, which checks them when it builds the pages."""
    folder = (ROOT / page).parent
    text = re.sub(r"^```(?!\{eval).*?^```", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(<?([^)>\s]+)>?\)|^\[[^\]^]+\]: (\S+)$", text, re.MULTILINE)
    for target in (inline or reference for inline, reference in links):
        if target.startswith(("https://", "#")):
            continue
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), target
        if anchor:
            assert anchor in anchors(folder / path), target


@cache
def anchors(path):
    """Return what GitHub and MyST call the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if "{include} ../CONTRIBUTING.md" in path.read_text(encoding="utf-8"):
        return anchors(ROOT / "CONTRIBUTING.md")
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
