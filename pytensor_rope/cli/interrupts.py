"""Ctrl-C and SIGTERM: both unwind the command, so that the terminal is left in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 128 + 2
EXIT_TERMINATED = 128 + 15


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code that a shell gives for the signal."""
    return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Raise :class:`Terminated` when SIGTERM arrives, as ``timeout`` sends it."""
    # Python lets the main thread alone set a handler.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated
