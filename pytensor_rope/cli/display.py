"""What a user sees on standard error while a command works."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

REFRESH_SECONDS = 0.1
SMALLEST_PINNED_HEIGHT = 4

SAVE_CURSOR, RESTORE_CURSOR = "\x1b7", "\x1b8"
DOWN_SCROLLING, UP = "\x1bD", "\x1b[A"
ERASE_LINE = "\x1b[K"
WHOLE_SCREEN_SCROLLS = "\x1b[r"


def is_interactive() -> bool:
    """Return whether standard error is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and values on standard output, the values under each other."""
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"{label:<{width}}  {value}")


def phase(message: str) -> AbstractContextManager[object]:
    """
    Show what is being done for as long as it takes.

    Parameters
    ----------
    message : str
        What is being done, such as ``"loading smollm2"``.

    Returns
    -------
    shown : context manager
        A spinner with the time so far, where standard error is a terminal and rich is installed.
        Elsewhere the message is one plain line.
    """
    spinner = _spinner(message) if is_interactive() else None
    if spinner is not None:
        return spinner
    print(message, file=sys.stderr, flush=True)
    return nullcontext()


def _spinner(message: str) -> AbstractContextManager[object] | None:
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    progress.add_task(message, total=None)
    return progress


class StatusLine:
    """
    A line about a running stream; this one, for where there is no terminal, shows nothing.

    A context manager: leaving it takes the line off the screen, however the command ends.
    """

    def __init__(self) -> None:
        self._next_refresh = 0.0

    def update(self, describe: Callable[[], str]) -> None:
        """Show what ``describe`` returns, unless the line was refreshed a moment ago."""
        now = time.monotonic()
        if now >= self._next_refresh:
            self._next_refresh = now + REFRESH_SECONDS
            self.show(describe)

    def show(self, describe: Callable[[], str]) -> None:
        """Show what ``describe`` returns."""

    def clear(self) -> None:
        """Take the line off the screen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()


class RewrittenLine(StatusLine):
    """The only line on a terminal that the text doesn't go to."""

    def show(self, describe: Callable[[], str]) -> None:
        """Write the line over the last one."""
        _write(f"\r{describe()[: _terminal_size().columns - 1]}{ERASE_LINE}")

    def clear(self) -> None:
        """Erase the line."""
        _write(f"\r{ERASE_LINE}")


class PinnedLine(StatusLine):
    """The bottom row of the terminal that the text scrolls on, kept out of the scrolling."""

    def __init__(self) -> None:
        super().__init__()
        self._size: os.terminal_size | None = None

    def show(self, describe: Callable[[], str]) -> None:
        """Write the bottom row, and leave the cursor where the text has it."""
        size = _terminal_size()
        if size.lines < SMALLEST_PINNED_HEIGHT:
            self.clear()
            return
        if size != self._size:
            self._reserve(size)
        self._write_bottom_row(size, describe()[: size.columns - 1])

    def clear(self) -> None:
        """Erase the bottom row and let the whole screen scroll again."""
        if self._size is not None:
            self._write_bottom_row(self._size, "", WHOLE_SCREEN_SCROLLS)
            self._size = None

    def _reserve(self, size: os.terminal_size) -> None:
        # Setting the margins moves the cursor to the corner. Before that it has to leave the bottom
        # row, in the same column, whether or not it is there: one row down, then one row up.
        scrolling_rows = f"\x1b[1;{size.lines - 1}r"
        _write(f"{DOWN_SCROLLING}{SAVE_CURSOR}{scrolling_rows}{RESTORE_CURSOR}{UP}")
        self._size = size

    def _write_bottom_row(self, size: os.terminal_size, text: str, then: str = "") -> None:
        to_bottom_row = f"\x1b[{size.lines};1H"
        _write(f"{SAVE_CURSOR}{to_bottom_row}{text}{ERASE_LINE}{then}{RESTORE_CURSOR}")


def status_line() -> StatusLine:
    """Return the status line that suits where standard output and standard error go."""
    if not is_interactive():
        return StatusLine()
    return PinnedLine() if sys.stdout.isatty() else RewrittenLine()


def resident_memory() -> int | None:
    """Return the resident memory of this process in bytes, or None where psutil is missing."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def in_mebibytes(n_bytes: int) -> str:
    """Return a number of bytes for people to read."""
    return f"{n_bytes / 2**20:,.1f} MiB"


def _terminal_size() -> os.terminal_size:
    size = os.get_terminal_size(sys.stderr.fileno())
    # A terminal that doesn't know its width says 0.
    return size if size.columns else os.terminal_size((80, size.lines))


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
