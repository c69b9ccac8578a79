"""The command line, against a model that recites."""

import codecs
import dataclasses
import inspect
import itertools
import json
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pytensor_rope
from pytensor_rope import DecoderConfig, checkpoints
from pytensor_rope.checkpoints.base import GenerationDefaults
from pytensor_rope.cli import main
from pytensor_rope.frequencies import Linear

TESTS = Path(__file__).parent
PACKAGE_ROOT = Path(pytensor_rope.__file__).parents[1]
END_OF_TURN = 256
PAUSE = 0.02
TIMEOUT = 60


# SmolLM2-135M, whose parameters Hugging Face counts as 134,515,008.
CONFIG = DecoderConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    n_layer=30,
    n_head=9,
    n_kv_head=3,
    head_dim=64,
    context_length=8_192,
    tied=True,
    base=100_000.0,
)


class Tokenizer:
    """One token a byte, and one for the end of a turn."""

    eos_ids = (END_OF_TURN,)

    def __init__(self, chat_template):
        self.chat_template = chat_template

    def encode(self, text, *, add_special=True):
        return [*([1] if add_special else []), *text.encode()]

    def stream_decoder(self):
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        return SimpleNamespace(
            push=lambda i: "<end>" if i == END_OF_TURN else utf8.decode(bytes([i])),
            flush=lambda: utf8.decode(b"", final=True),
        )

    def apply_chat_template(self, messages, add_generation_prompt=True):
        turns = "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return turns + ("[assistant]" if add_generation_prompt else "")


@dataclass
class Stream:
    """Recites the reply, or the prompt, over and over, with a pause before each token."""

    reply: Iterable[int] | None
    pause: float
    calls: list
    position: int = 0

    def generate(self, prompt_ids, max_tokens, **options):
        self.calls.append(("generate", list(prompt_ids), max_tokens, options))
        self.position = len(prompt_ids)
        reply = [*prompt_ids, END_OF_TURN] if self.reply is None else self.reply
        for token_id in itertools.islice(itertools.cycle(reply), max_tokens):
            time.sleep(self.pause)
            self.position += 1
            yield token_id
            if token_id in options["stop"]:
                return

    def score(self, token_ids):
        self.calls.append(("score", list(token_ids)))
        return np.linspace(1.0, 3.0, len(token_ids) - 1, dtype=np.float32)


@dataclass
class Model:
    reply: Iterable[int] | None = b"Paris."
    pause: float = 0.0
    chat_template: str | None = "a template"
    calls: list = field(default_factory=list)
    config: DecoderConfig = CONFIG
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)

    def __post_init__(self):
        self.tokenizer = Tokenizer(self.chat_template)

    def load(self, source, dtype="float32"):
        self.calls.append(("load", source, dtype))
        return self

    def describe(self, source, *, with_weights):
        assert not with_weights
        return self

    def compile(self, backend, **options):
        self.calls.append(("compile", backend, options))
        return Stream(self.reply, self.pause, self.calls)

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


def then_nothing(reply):
    """Yield a reply that never comes to its end."""
    yield from reply
    time.sleep(TIMEOUT)


@pytest.fixture
def model(monkeypatch):
    fake = Model()
    monkeypatch.setitem(vars(pytensor_rope), "load_model", fake.load)
    monkeypatch.setattr(checkpoints, "load_checkpoint", fake.describe)
    return fake


@pytest.fixture
def refuse(monkeypatch):
    """Make loading a model fail with an error."""

    def install(error):
        def load(source, **options):
            raise error

        monkeypatch.setitem(vars(pytensor_rope), "load_model", load)
        monkeypatch.setattr(checkpoints, "load_checkpoint", load)

    return install


class Process:
    """The command line in a process of its own, on a model made by an expression."""

    def __init__(self, tmp_path, *arguments, model="Model()", **options):
        driver = tmp_path / "driver.py"
        driver.write_text(
            textwrap.dedent(
                f"""\
                import signal, sys
                sys.path[:0] = {[str(TESTS), str(PACKAGE_ROOT)]!r}
                # Whatever started the tests may ignore it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                import pytensor_rope
                from test_cli import *
                model = {model}
                vars(pytensor_rope)["load_model"] = model.load
                checkpoints.load_checkpoint = model.describe
                sys.exit(main())
                """
            )
        )
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, str(driver), *arguments],
            env={
                **os.environ,
                "TERM": "xterm",
                "PYTHONIOENCODING": "latin-1",
                "PYTHONUNBUFFERED": "",
            },
            **{**pipes, **options},
        )

    def __enter__(self):
        return self.process

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


class Terminal:
    """A pseudo-terminal of 24 rows and 100 columns."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

    def read(self):
        """Return everything shown, once every process has closed the terminal."""
        os.close(self.theirs)
        shown = b""
        while select.select([self.ours], [], [], TIMEOUT)[0]:
            try:
                piece = os.read(self.ours, 65_536)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not piece:
                break
            shown += piece
        os.close(self.ours)
        return shown.decode()


def error_line(capsys):
    """Return the only line on standard error, with nothing on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith(("loading ", "reading "))]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("pytensor-rope: error: ")
    return lines[0].removeprefix("pytensor-rope: error: ")


def refused(arguments):
    """Return the exit code of arguments that the parser or a command refuses."""
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


# Starting


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_and_version_load_nothing_slow(arguments):
    code = (
        "import sys\n"
        "from pytensor_rope.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as error: assert error.code == 0\n"
        "slow = {'pytensor', 'numpy', 'rich', 'psutil', 'numba', 'jax', 'mlx'}\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr == "[]\n"


def test_version_is_the_packages(capsys):
    assert refused(["--version"]) == 0
    assert capsys.readouterr().out == f"pytensor-rope {pytensor_rope.__version__}\n"


def test_help_tells_exit_codes_and_the_debug_variable(capsys):
    assert refused(["generate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "PYTENSOR_ROPE_DEBUG=1" in out
    assert "130" in out


def test_runs_as_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytensor_rope.cli", "generate", "x", "--tokens", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("pytensor-rope: error: argument --tokens")


# generate


def test_generate_passes_every_option_on(model):
    arguments = (
        "generate Hi --model a.gguf --backend jax --sinks 2 --window 60 --positions absolute "
        "--tokens 3 --temperature 0.7 --top-k 40 --top-p 0.9 --seed 5 --raw"
    )
    assert main(arguments.split()) == 0
    assert model.calls == [
        ("load", "a.gguf", "float32"),
        ("compile", "jax", {"sinks": 2, "window": 60, "positions": "absolute"}),
        (
            "generate",
            [1, *b"Hi"],
            3,
            {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 5, "stop": ()},
        ),
    ]


def test_generate_defaults(model):
    assert main(["generate", "Hi"]) == 0
    assert model.calls == [
        ("load", "smollm2", "float32"),
        ("compile", "numba", {"sinks": 4, "window": 1020, "positions": "cache"}),
        (
            "generate",
            list(b"[user]Hi[assistant]"),
            256,
            {"temperature": 0.0, "top_k": None, "top_p": None, "seed": None, "stop": (256,)},
        ),
    ]


def test_chat_ends_at_the_end_of_turn_and_does_not_write_it(model, capsys):
    model.reply = [*b"Paris.", END_OF_TURN, *b"[user]"]
    assert main(["generate", "Hi", "--tokens", "forever"]) == 0
    assert capsys.readouterr().out == "Paris.\n"


def test_raw_goes_past_the_end_of_turn(model, capsys):
    model.reply = [*b"a", END_OF_TURN, *b"b"]
    assert main(["generate", "Hi", "--raw", "--tokens", "3"]) == 0
    assert capsys.readouterr().out == "a<end>b\n"


def test_system_message_comes_first(model):
    assert main(["generate", "Hi", "--system", "Be brief."]) == 0
    prompt_ids = model.called("generate")[0][0]
    assert bytes(prompt_ids) == b"[system]Be brief.[user]Hi[assistant]"


def test_model_without_template_continues_the_text(model):
    model.tokenizer.chat_template = None
    assert main(["generate", "Hi"]) == 0
    prompt_ids, _, options = model.called("generate")[0]
    assert prompt_ids == [1, *b"Hi"]
    assert options["stop"] == ()


def test_tokens_forever_sets_no_limit(model):
    model.reply = [*b"Paris.", END_OF_TURN]
    assert main(["generate", "Hi", "--tokens", "forever"]) == 0
    assert model.called("generate")[0][1] is None


def test_tokens_limits_the_text(model, capsys):
    assert main(["generate", "Hi", "--tokens", "8"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Paris.Pa\n"
    assert re.fullmatch(
        r"pytensor-rope: 8 tokens in \d+\.\d s(; \d+\.\d tokens/s once it ran)?",
        captured.err.splitlines()[-1],
    )


def test_progress_is_plain_lines_where_there_is_no_terminal(model, capsys):
    assert main(["generate", "Hi", "--raw"]) == 0
    assert capsys.readouterr().err.splitlines()[:-1] == [
        "loading smollm2",
        "compiling for numba (first time takes about a minute, later starts seconds), "
        "then reading the prompt (3 tokens)",
    ]


@pytest.mark.parametrize("argument", [[], ["-"]], ids=["absent", "dash"])
@pytest.mark.parametrize(
    ("piped", "prompt"),
    [(b"Hi", b"Hi"), (b"Hi\n", b"Hi"), (b"a\r\nb\r\n", b"a\r\nb"), (b"a\n\n", b"a\n")],
)
def test_prompt_from_standard_input(tmp_path, argument, piped, prompt):
    arguments = ("generate", *argument)
    with Process(tmp_path, *arguments, model="Model(reply=None)", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(piped, timeout=TIMEOUT)
    assert out == b"[user]" + prompt + b"[assistant]\n"


def test_piped_text_is_exact_to_the_byte(tmp_path):
    text = "é, 漢字 and 🙂\r\n\ttab\n"
    model = f"Model(reply=[*{text.encode()!r}, END_OF_TURN])"
    with Process(tmp_path, "generate", "Hi", model=model) as process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert out == text.encode() + b"\n"
    assert b"\x1b" not in err
    assert b"\r" not in err
    assert b"position" not in err


def test_text_comes_as_it_is_made_in_whole_characters(tmp_path):
    # One byte a token: each read sees a piece, and no piece ends inside a character.
    model = "Model(reply=list('é🙂'.encode()), pause=PAUSE)"
    pieces = []
    with Process(tmp_path, "generate", "Hi", "--tokens", "24", model=model) as process:
        while piece := os.read(process.stdout.fileno(), 1000):
            pieces.append(piece.decode())
    assert "".join(pieces) == "é🙂" * 4 + "\n"
    assert len(pieces) > 4


def test_character_cut_by_the_token_limit_is_marked(model, capsys):
    model.reply = list("🙂".encode())
    assert main(["generate", "Hi", "--tokens", "6"]) == 0
    assert capsys.readouterr().out == "🙂\N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_signal_ends_an_endless_text_with_a_summary(tmp_path, number, code):
    arguments = ("generate", "Hi", "--tokens", "forever")
    with Process(tmp_path, *arguments, model="Model(pause=PAUSE)") as process:
        begun = os.read(process.stdout.fileno(), 6)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT)
    text = begun + out
    assert process.returncode == code
    assert text.endswith(b"\n")
    assert (b"Paris." * 1000).startswith(text[:-1])
    summary = rb"pytensor-rope: \d+ tokens? in \d+\.\d s(; \d+\.\d tokens/s once it ran)?"
    assert re.fullmatch(summary, err.splitlines()[-1])
    assert b"Traceback" not in err


def test_ctrl_c_inside_a_character_writes_no_part_of_it(tmp_path):
    arguments = ("generate", "Hi", "--tokens", "forever")
    model = "Model(reply=then_nothing(b'A' + '🙂'.encode()[:2]))"
    with Process(tmp_path, *arguments, model=model) as process:
        begun = os.read(process.stdout.fileno(), 1)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT)
    assert begun + out == b"A\n"


def test_ctrl_c_while_loading_is_one_line(tmp_path):
    model = "type('Slow', (), {'load': lambda self, source, dtype: time.sleep(60), 'describe': None})()"
    with Process(tmp_path, "generate", "Hi", model=model) as process:
        assert process.stderr.readline() == b"loading smollm2\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert (out, err) == (b"", b"pytensor-rope: interrupted\n")


def test_closed_pipe_ends_an_endless_text_quietly(tmp_path):
    arguments = ("generate", "Hi", "--tokens", "forever")
    with Process(tmp_path, *arguments, model="Model(pause=PAUSE)") as process:
        assert os.read(process.stdout.fileno(), 1) == b"P"
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(TIMEOUT) == 141
    assert err.splitlines()[-1].startswith(b"compiling for numba")


def test_closed_pipe_is_quiet_for_buffered_output_too(tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    with Process(tmp_path, "info", "smollm2", stdout=theirs) as process:
        os.close(theirs)
        assert process.stderr.read() == b"reading smollm2\n"
        assert process.wait(TIMEOUT) == 141


def test_output_that_cannot_be_written_is_one_line(tmp_path):
    with (
        open(os.devnull, "rb") as unwritable,
        Process(tmp_path, "info", "smollm2", stdout=unwritable) as process,
    ):
        err = process.stderr.read()
        assert process.wait(TIMEOUT) == 2
    assert err == b"reading smollm2\npytensor-rope: error: Bad file descriptor\n"


# The status line


def test_status_line_where_only_standard_error_is_a_terminal(tmp_path):
    terminal = Terminal()
    arguments = ("generate", "Hi", "--raw", "--tokens", "12", "--sinks", "1", "--window", "7")
    model = "Model(pause=PAUSE)"
    with Process(tmp_path, *arguments, model=model, stderr=terminal.theirs) as process:
        shown = terminal.read()
        out = process.stdout.read()
        assert process.wait(TIMEOUT) == 0
    assert out == b"Paris.Paris.\n"
    lines = re.findall(r"position [^\r\x1b]*", shown)
    # The first token's line says what the second waits for. Later the cache of 8 is full.
    assert "compiling for single tokens on numba" in shown
    assert re.fullmatch(
        r"position \d+ \| \d+\.\d tokens/s \| [\d,]+\.\d MiB resident \| cache \d/8 slots", lines[0]
    )
    assert re.fullmatch(
        r"position 1\d \| [1-9]\d*\.\d tokens/s \| [\d,]+\.\d MiB resident \| cache 8/8 slots",
        lines[-1],
    )
    erased, summary = "\r\x1b[K", "pytensor-rope: 12 tokens in "
    assert f"{erased}{summary}" in shown
    assert "\x1b7" not in shown


def test_status_line_on_the_terminal_of_the_text_is_pinned_below_it(tmp_path):
    terminal = Terminal()
    with Process(
        tmp_path,
        *("generate", "Hi", "--tokens", "12"),
        model="Model(pause=PAUSE)",
        stdout=terminal.theirs,
        stderr=terminal.theirs,
    ) as process:
        shown = terminal.read()
        assert process.wait(TIMEOUT) == 0
    assert shown.count("\x1b[1;23r") == 1
    bottom_row = re.compile(r"\x1b7\x1b\[24;1H([^\x1b]*)\x1b\[K(?:\x1b\[r)?\x1b8")
    assert bottom_row.findall(shown)[0] == "compiling for single tokens on numba"
    assert bottom_row.findall(shown)[1].startswith("position ")
    assert bottom_row.findall(shown)[-1] == ""
    assert shown.count("\x1b[r") == 1
    # What is left without the status line, from the first piece of text on, is the text.
    unpinned = bottom_row.sub("", shown).replace("\x1bD\x1b7\x1b[1;23r\x1b8\x1b[A", "")
    assert "Paris.Paris.\r\npytensor-rope: 12 tokens in " in unpinned


def test_ctrl_c_gives_the_whole_terminal_back(tmp_path):
    terminal = Terminal()
    with Process(
        tmp_path,
        *("generate", "Hi", "--tokens", "forever"),
        model="Model(pause=PAUSE)",
        stdout=terminal.theirs,
        stderr=terminal.theirs,
    ) as process:
        begun = ""
        while "Paris." not in re.sub(r"\x1b7.*?\x1b8", "", begun):
            begun += os.read(terminal.ours, 1000).decode()
        process.send_signal(signal.SIGINT)
        shown = begun + terminal.read()
        assert process.wait(TIMEOUT) == 130
    assert shown.rindex("\x1b[r") > shown.rindex("\x1b[1;23r")
    assert shown.index("pytensor-rope: ") > shown.rindex("\x1b[r")


def test_spinner_while_it_loads_on_a_terminal(tmp_path):
    terminal = Terminal()
    with Process(tmp_path, "info", "a[b].gguf", stderr=terminal.theirs) as process:
        shown = terminal.read()
        out = process.stdout.read()
    assert "reading a[b].gguf" in shown
    assert "0:00:0" in shown
    assert b"reading" not in out


@pytest.mark.parametrize("module", ["rich", "psutil"])
def test_display_does_without_the_extra(tmp_path, module):
    terminal = Terminal()
    model = f"(sys.modules.update({{{module!r}: None}}), Model(pause=PAUSE))[1]"
    arguments = ("generate", "Hi", "--tokens", "12")
    with Process(tmp_path, *arguments, model=model, stderr=terminal.theirs) as process:
        shown = terminal.read()
        out = process.stdout.read()
        assert process.wait(TIMEOUT) == 0
    assert out == b"Paris.Paris.\n"
    assert "loading smollm2" in shown
    assert ("resident" in shown) == (module == "rich")


def test_dumb_terminal_gets_plain_lines(tmp_path):
    terminal = Terminal()
    model = "(os.environ.update(TERM='dumb'), Model())[1]"
    arguments = ("generate", "Hi", "--tokens", "2")
    with Process(tmp_path, *arguments, model=model, stderr=terminal.theirs) as process:
        shown = terminal.read()
        assert process.wait(TIMEOUT) == 0
    assert "\x1b" not in shown
    assert "position" not in shown


def test_generate_takes_the_defaults_of_the_model(model, capsys):
    model.generation = GenerationDefaults(temperature=0.7, top_k=20, top_p=0.8)
    assert main(["generate", "Hi"]) == 0
    assert main(["generate", "Hi", "--temperature", "0", "--top-k", "3", "--top-p", "1"]) == 0
    theirs, ours = [call[-1] for call in model.called("generate")]
    names = ("temperature", "top_k", "top_p")
    assert [theirs[name] for name in names] == [0.7, 20, 0.8]
    assert [ours[name] for name in names] == [0.0, 3, 1.0]


# score


def test_score_prints_perplexity(model, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_bytes("é\r\n!".encode())
    assert main(["score", str(path)]) == 0
    captured = capsys.readouterr()
    # The mean of the fake's values is 2.
    assert captured.out == (
        f"perplexity  {math.exp(2):.4f}\nmean nll    2.000000 nats a token\ntokens      5 predicted of 6\n"
    )
    assert captured.err.splitlines()[-1].endswith(", then scoring 6 tokens")
    assert model.called("score") == [([1, *"é\r\n!".encode()],)]
    assert model.called("compile") == [("numba", {"sinks": 4, "window": 1020, "positions": "cache"})]


def test_score_passes_the_cache_on(model, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Hello")
    cache = ["--sinks", "0", "--window", "60", "--positions", "absolute"]
    assert main(["score", str(path), *cache, "--backend", "c", "--model", "a.gguf"]) == 0
    assert model.called("load") == [("a.gguf", "float32")]
    assert model.called("compile") == [("c", {"sinks": 0, "window": 60, "positions": "absolute"})]


def test_dense_score_has_a_window_that_holds_the_text(model, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Hello")
    assert main(["score", str(path), "--dense", "--limit", "4"]) == 0
    assert model.called("compile") == [("numba", {"sinks": 0, "window": 4, "positions": "cache"})]
    assert model.called("score") == [([1, *b"Hel"],)]


def test_score_as_json(model, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("Hello")
    assert main(["score", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "perplexity": pytest.approx(math.exp(2)),
        "mean_nll": 2.0,
        "tokens": 5,
    }


def test_score_of_standard_input(tmp_path):
    with Process(tmp_path, "score", "-", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(b"Hello", timeout=TIMEOUT)
    assert b"5 predicted of 6" in out


def test_perplexity_too_large_for_a_float_is_infinite(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Stream, "score", lambda self, ids: np.full(len(ids) - 1, 1000.0))
    path = tmp_path / "text.txt"
    path.write_text("Hello")
    assert main(["score", str(path)]) == 0
    assert "perplexity  inf\n" in capsys.readouterr().out


# info


def test_info_is_a_table(model, capsys):
    assert main(["info", "smollm2", "--sinks", "4", "--window", "60"]) == 0
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows == {
        "model": "smollm2",
        "parameters": "134,515,008",
        "layers": "30",
        "query heads": "9",
        "key/value heads": "3",
        "head width": "64",
        "hidden width": "576",
        "feed-forward width": "1,536",
        "vocabulary": "49,152",
        "output head": "the token embedding",
        "context": "8,192",
        "rope base": "100,000",
        "rope scaling": "Default()",
        "rope pairing": "half, 64 of 64 rotated",
        "norm epsilon": "1e-05",
        # 30 layers of keys and values, 64 slots, 3 heads of 64 numbers of 4 bytes
        "cache": "2.8 MiB in float32 for 64 slots (4 sinks and a window of 60)",
    }
    assert not model.called("compile")


def test_info_tells_scaling_and_partial_rotation(model, capsys):
    model.config = dataclasses.replace(CONFIG, scaling=Linear(factor=4.0), rotary_dim=32, tied=False)
    assert main(["info", "smollm2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^rope scaling +Linear\(factor=4\.0\)$", out, re.MULTILINE)
    assert re.search(r"^rope pairing +half, 32 of 64 rotated$", out, re.MULTILINE)
    # The head has 49,152 x 576 weights of its own.
    assert re.search(r"^parameters +162,826,560$", out, re.MULTILINE)


def test_info_tells_which_layers_slide(model, capsys):
    slides = tuple(layer % 6 != 5 for layer in range(30))
    model.config = dataclasses.replace(
        CONFIG,
        sliding_window=16,
        sliding_layers=slides,
        sliding_base=5_000.0,
        sliding_scaling=Linear(factor=2.0),
        rotated_layers=(False,) + (True,) * 29,
    )
    assert main(["info", "smollm2", "--sinks", "4", "--window", "60"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^layers +30: 25 see the last 16 tokens, 5 see everything, 1 without rope$", out, re.MULTILINE
    )
    assert re.search(r"^sliding rope base +5,000$", out, re.MULTILINE)
    assert re.search(r"^sliding rope scaling +Linear\(factor=2\.0\)$", out, re.MULTILINE)
    # 25 layers of 16 slots and 5 of 64, of 1,536 bytes each
    assert re.search(r"^cache +1\.1 MiB in float32 for 64 slots .*keep that$", out, re.MULTILINE)
    assert main(["info", "smollm2", "--json", "--sinks", "4", "--window", "60"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["cache"]["bytes"] == (25 * 16 + 5 * 64) * 1536
    assert described["config"]["sliding_scaling"] == {"scheme": "Linear", "factor": 2.0}


def test_info_as_json(model, capsys):
    assert main(["info", "smollm2", "--json", "--sinks", "4", "--window", "60"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["config"]["base"] == 100_000.0
    assert described["config"]["rotary_dim"] is None
    assert described["parameters"] == 134_515_008
    assert described["cache"] == {"sinks": 4, "window": 60, "slots": 64, "bytes": 2_949_120}


# check


def test_check_loads_a_model_and_runs_it(capsys):
    pytest.importorskip("jax")
    directory = str(TESTS / "data" / "zoo" / "gemma3")
    assert main(["check", directory, "--backend", "jax", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["backend"], report["dtype"]) == ("jax", "float32")
    assert report["parameters"] == 80_576
    assert "no tokenizer" in report["tokenizer"] and "tokenizer.json" in report["tokenizer"]
    # One layer keeps its window of 8 tokens, the other 1,024; 2 heads of 16 numbers of 4 bytes.
    assert report["cache_bytes"] == 2 * (8 + 1024) * 2 * 16 * 4
    assert main(["check", directory, "--backend", "jax", "--dtype", "float16", "--window", "60"]) == 0
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["parameters"] == "80,576 in float16"
    assert rows["result"] == "it loads and runs"


def test_check_of_what_is_no_model_is_one_line(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert error_line(capsys) == (
        f"Can't load {tmp_path}: it holds no config.json, so this is no directory of a Hugging Face model."
    )


def test_check_on_numba_refuses_float16(capsys):
    assert main(["check", str(TESTS / "data" / "zoo" / "gemma3"), "--dtype", "float16"]) == 2
    assert "Numba has no float16" in error_line(capsys)


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--tokens 0", "argument --tokens: expected a whole number of at least 1, or 'forever'"),
        ("--tokens ever", "argument --tokens: expected a whole number of at least 1, or 'forever'"),
        ("--window 0", "argument --window: expected a whole number of at least 1; got '0'"),
        ("--window 1.5", "argument --window: expected a whole number of at least 1; got '1.5'"),
        ("--sinks -1", "argument --sinks: expected a whole number of at least 0; got '-1'"),
        ("--temperature -1", "argument --temperature: expected a finite number of at least 0"),
        ("--temperature nan", "argument --temperature: expected a finite number of at least 0"),
        ("--temperature inf", "argument --temperature: expected a finite number of at least 0"),
        ("--top-k 0", "argument --top-k: expected a whole number of at least 1; got '0'"),
        ("--top-p 0", "argument --top-p: expected a number above 0 and up to 1; got '0'"),
        ("--top-p 1.1", "argument --top-p: expected a number above 0 and up to 1; got '1.1'"),
        ("--top-p nan", "argument --top-p: expected a number above 0 and up to 1; got 'nan'"),
        ("--seed -1", "argument --seed: expected a whole number of at least 0; got '-1'"),
        ("--backend torch", "argument --backend: invalid choice: 'torch'"),
        ("--positions true", "argument --positions: invalid choice: 'true'"),
        ("--chat --raw", "argument --raw: not allowed with argument --chat"),
        ("--raw --system x", "--system needs --chat, with a model that has a chat template."),
        ("--temp 1", "unrecognized arguments: --temp 1"),
    ],
)
def test_refused_argument_is_one_line(model, capsys, arguments, message):
    assert refused(["generate", "Hi", *arguments.split()]) == 2
    assert error_line(capsys).startswith(message)
    assert not model.called("compile")


def test_command_is_required(capsys):
    assert refused([]) == 2
    assert error_line(capsys) == "the following arguments are required: COMMAND"


@pytest.mark.parametrize("option", ["--sinks 4", "--window 1020", "--positions cache"])
def test_dense_refuses_a_cache(model, tmp_path, capsys, option):
    path = tmp_path / "text.txt"
    path.write_text("Hello")
    assert refused(["score", str(path), "--dense", *option.split()]) == 2
    name = option.split()[0]
    assert error_line(capsys) == f"--dense keeps every token, so it can't go with {name}."


def test_limit_of_one_token_is_refused(capsys):
    assert refused(["score", "x", "--limit", "1"]) == 2
    assert "argument --limit: expected a whole number of at least 2" in error_line(capsys)


def test_empty_prompt(model, capsys):
    assert main(["generate", ""]) == 2
    assert error_line(capsys) == "the prompt is empty."
    assert not model.calls


def test_prompt_that_is_not_utf8(model, capsys):
    assert main(["generate", os.fsdecode(b"\xff")]) == 2
    assert error_line(capsys) == "the prompt is not UTF-8 text."


def test_prompt_is_required_on_a_terminal(tmp_path):
    terminal = Terminal()
    with Process(tmp_path, "generate", stdin=terminal.theirs) as process:
        out, err = process.communicate(timeout=TIMEOUT)
    terminal.read()
    assert process.returncode == 2
    assert out == b""
    assert err == (b"pytensor-rope: error: no prompt: give PROMPT, or pipe it into standard input.\n")


def test_standard_input_that_is_not_utf8(tmp_path):
    with Process(tmp_path, "generate", "-", stdin=subprocess.PIPE) as process:
        _, err = process.communicate(b"ab\xff", timeout=TIMEOUT)
    assert process.returncode == 2
    assert err == (b"pytensor-rope: error: standard input is not UTF-8 text: byte 2 can't be read.\n")


def test_chat_without_a_template(model, capsys):
    model.tokenizer.chat_template = None
    assert main(["generate", "Hi", "--chat"]) == 2
    assert error_line(capsys) == "smollm2 has no chat template; continue the text with --raw."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path} is empty."),
        (b"a\xff", "{path} is not UTF-8 text: byte 1 can't be read."),
        (None, "{path}: No such file or directory"),
    ],
    ids=["empty", "not utf-8", "missing"],
)
def test_file_that_cannot_be_scored(model, tmp_path, capsys, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    assert main(["score", str(path)]) == 2
    assert error_line(capsys) == message.format(path=path)
    assert not model.calls


def test_file_of_one_token_is_too_short(model, tmp_path, capsys):
    model.tokenizer.encode = lambda text, **options: [7]
    path = tmp_path / "text.txt"
    path.write_text("x")
    assert main(["score", str(path)]) == 2
    assert error_line(capsys) == f"{path} is too short to score: it takes 2 tokens, and has 1."


class FromThisPackage(Exception):
    __module__ = "pytensor_rope.checkpoints"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such model."), "no such model."),
        (ImportError("pip install it"), "pip install it"),
        (FileNotFoundError(2, "No such file", "a.gguf"), "a.gguf: No such file"),
        (OSError("bare"), "bare"),
        (MemoryError(), "MemoryError"),
        (FromThisPackage("truncated."), "truncated."),
        (ValueError("one\ntwo"), "one (set PYTENSOR_ROPE_DEBUG=1 for the whole of it)"),
        (KeyError("k"), "KeyError: 'k' (set PYTENSOR_ROPE_DEBUG=1 for the whole of it)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_of_the_runtime_is_one_line(refuse, capsys, error, message):
    refuse(error)
    assert main(["info", "a.gguf"]) == 2
    assert error_line(capsys) == message


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_debug_variable_shows_the_traceback(refuse, capsys, monkeypatch, value, shown):
    monkeypatch.setenv("PYTENSOR_ROPE_DEBUG", value)
    refuse(ValueError("no such model."))
    assert main(["info", "a.gguf"]) == 2
    err = capsys.readouterr().err
    assert ("Traceback" in err) == shown
    assert err.endswith("pytensor-rope: error: no such model.\n")


def test_choices_and_defaults_are_the_library_s():
    """The parser repeats them, so that --help doesn't wait for PyTensor."""
    from pytensor_rope import Model, backends, layout
    from pytensor_rope.cli import arguments

    assert set(arguments.BACKENDS) == set(backends.BACKENDS)
    assert tuple(arguments.POSITIONS) == layout.POSITIONS
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(Model.compile).parameters.items()
    }
    options = arguments.build_parser().parse_args(["generate", "Hi"])
    for name in ("sinks", "window", "positions"):
        assert getattr(options, name) == defaults[name]
