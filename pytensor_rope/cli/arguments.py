"""The arguments of each command, checked before anything is loaded."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn

from pytensor_rope import __version__

PROGRAM = "pytensor-rope"
DEBUG_VARIABLE = "PYTENSOR_ROPE_DEBUG"
BACKENDS = ("numba", "c", "jax", "mlx")
POSITIONS = ("cache", "absolute", "wrapped")
DTYPES = ("float32", "float16")
MODELS = "a Hugging Face directory, a GGUF file, or a name"
DEFAULT_MODEL = "smollm2"
DEFAULT_SINKS = 4
DEFAULT_WINDOW = 1020

EPILOG = f"""\
exit codes:
  0    the command finished
  2    an error, told in one line on standard error
  130  Ctrl-C ended it (143: SIGTERM did)
  141  the reader of standard output went away, as in `... | head`

environment:
  {DEBUG_VARIABLE}=1  show the traceback of an error
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print the error on standard error and exit with code 2."""
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; what it parses has the command to call as ``run``."""
    parser = Parser(
        prog=PROGRAM,
        description="Stream text from a decoder compiled by PyTensor, in constant memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add_command(
        name: str, summary: str, run: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run)
        return command

    _add_generate_arguments(add_command("generate", "write text as it is made", _run_generate))
    _add_score_arguments(add_command("score", "measure the perplexity of a text", _run_score))
    _add_info_arguments(add_command("info", "describe a model, without reading its weights", _run_info))
    _add_check_arguments(add_command("check", "load a model, run one step and report", _run_check))
    return parser


def _run_generate(options: argparse.Namespace) -> int:
    from pytensor_rope.cli.generate import generate

    return generate(options)


def _run_score(options: argparse.Namespace) -> int:
    from pytensor_rope.cli.score import score

    return score(options)


def _run_info(options: argparse.Namespace) -> int:
    from pytensor_rope.cli.info import info

    return info(options)


def _run_check(options: argparse.Namespace) -> int:
    from pytensor_rope.cli.check import check

    return check(options)


def _add_generate_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the text to answer or continue; '-', or none when standard input is not a terminal, "
        "reads it from standard input, less one newline at its end",
    )
    _add_model_and_backend(command)
    _add_cache_arguments(command)
    command.add_argument(
        "--tokens",
        type=_token_limit,
        default=256,
        metavar="N|forever",
        help="how many tokens to write at most (default: 256); a chat answer ends with its turn",
    )
    command.add_argument(
        "--temperature",
        type=_temperature,
        metavar="F",
        help="divides the logits; 0 takes the likeliest token every time (default: what the model's "
        "files say, else 0)",
    )
    command.add_argument(
        "--top-k",
        type=_whole(1),
        metavar="N",
        help="sample from the N likeliest tokens only (default: what the model's files say)",
    )
    command.add_argument(
        "--top-p",
        type=_probability,
        metavar="F",
        help="sample from the likeliest tokens that together have probability F (default: what the "
        "model's files say)",
    )
    command.add_argument("--seed", type=_whole(0), metavar="N", help="makes the sampled text repeatable")
    mode = command.add_mutually_exclusive_group()
    mode.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="answer the prompt as one turn of a chat (default where the model has a template)",
    )
    mode.add_argument(
        "--raw",
        dest="chat",
        action="store_false",
        default=None,
        help="continue the prompt, past any end-of-turn token",
    )
    command.add_argument("--system", metavar="TEXT", help="the system message of the chat")


def _add_score_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a UTF-8 text; '-' reads standard input")
    _add_model_and_backend(command)
    command.add_argument(
        "--dense",
        action="store_true",
        help="let every token attend to the whole text before it, instead of to a cache",
    )
    # No defaults here: --dense refuses a cache option that was given, whatever its value.
    _add_cache_arguments(command, sinks=None, window=None, positions=None)
    command.add_argument(
        "--limit", type=_whole(2), metavar="N", help="score the first N tokens of the text only"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_info_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help=f"{MODELS} such as 'smollm2'")
    _add_cache_size(command, DEFAULT_SINKS, DEFAULT_WINDOW)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_check_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help=f"{MODELS} such as 'smollm2'")
    _add_backend(command)
    _add_cache_size(command, DEFAULT_SINKS, DEFAULT_WINDOW)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_model_and_backend(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODELS} (default: {DEFAULT_MODEL})")
    _add_backend(command)


def _add_backend(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--backend",
        choices=BACKENDS,
        default=BACKENDS[0],
        help=f"what PyTensor compiles to (default: {BACKENDS[0]})",
    )
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help=f"what the weights are kept in; Numba has no float16 (default: {DTYPES[0]})",
    )


def _add_cache_arguments(
    command: argparse.ArgumentParser,
    *,
    sinks: int | None = DEFAULT_SINKS,
    window: int | None = DEFAULT_WINDOW,
    positions: str | None = POSITIONS[0],
) -> None:
    _add_cache_size(command, sinks, window)
    command.add_argument(
        "--positions",
        choices=POSITIONS,
        default=positions,
        help="number positions inside the cache, by their true place in the stream, or as ExecuTorch's "
        f"ring of two windows does (default: {POSITIONS[0]})",
    )


def _add_cache_size(command: argparse.ArgumentParser, sinks: int | None, window: int | None) -> None:
    command.add_argument(
        "--sinks",
        type=_whole(0),
        default=sinks,
        metavar="N",
        help=f"first tokens that the cache keeps for good (default: {DEFAULT_SINKS})",
    )
    command.add_argument(
        "--window",
        type=_whole(1),
        default=window,
        metavar="N",
        help=f"latest tokens that the cache keeps (default: {DEFAULT_WINDOW})",
    )


def _whole(least: int) -> Callable[[str], int]:
    """Return a converter to an integer of at least ``least``."""

    def convert(text: str) -> int:
        number = _integer(text)
        if number is None or number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}; got {text!r}")
        return number

    return convert


def _token_limit(text: str) -> int | None:
    """Convert a count, or ``forever`` to None."""
    if text == "forever":
        return None
    number = _integer(text)
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, or 'forever'; got {text!r}")
    return number


def _temperature(text: str) -> float:
    number = _real(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0; got {text!r}")
    return number


def _probability(text: str) -> float:
    number = _real(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and up to 1; got {text!r}")
    return number


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _real(text: str) -> float:
    """Return the number, or NaN, which no range admits, for what isn't one."""
    try:
        return float(text)
    except ValueError:
        return math.nan
