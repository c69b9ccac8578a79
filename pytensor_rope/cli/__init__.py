"""The command line, ``pytensor-rope``: write text with a model, score a text, describe a model."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from pytensor_rope.cli.arguments import DEBUG_VARIABLE, PROGRAM, build_parser
from pytensor_rope.cli.interrupts import exit_code, termination_interrupts

__all__ = ["main"]

EXIT_ERROR = 2
EXIT_CLOSED_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return the exit code of the process.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name. Default is those of the process.

    Returns
    -------
    code : int
        0 when the command finished; 2 after an error, which is one line on standard error; 130 when
        Ctrl-C ended it and 143 when SIGTERM did; 141 when the reader of standard output went away.

    Raises
    ------
    SystemExit
        After ``--help`` and ``--version`` (code 0) and for arguments that are refused (code 2).
    """
    _replace_closed_streams()
    options = build_parser().parse_args(argv)
    try:
        with termination_interrupts():
            code: int = options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return exit_code(interrupt)
    except BrokenPipeError:
        _abandon_unwritable_output()
        return EXIT_CLOSED_PIPE
    except Exception as error:
        _report(error)
        _abandon_unwritable_output()
        return EXIT_ERROR
    return code


def _report(error: Exception) -> None:
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    print(f"{PROGRAM}: error: {_one_line(error)}", file=sys.stderr)


def _one_line(error: Exception) -> str:
    """Return what went wrong as one line, and where to find more when that leaves something out."""
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename is not None else ""
        return f"{named}{error.strerror}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    if not _written_for_users(error):
        message = f"{type(error).__name__}: {message}"
    elif len(lines) <= 1:
        return message
    return f"{message} (set {DEBUG_VARIABLE}=1 for the whole of it)"


def _written_for_users(error: Exception) -> bool:
    from_this_package = type(error).__module__.split(".")[0] == __name__.split(".")[0]
    return from_this_package or isinstance(error, ValueError | OSError | ImportError | MemoryError)


def _replace_closed_streams() -> None:
    """Give a standard stream that was closed before the program began a place that takes anything."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _abandon_unwritable_output() -> None:
    """Discard what can't be written, or the interpreter would complain about it while it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
