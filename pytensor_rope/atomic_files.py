"""Files that are replaced in one step, so that a crash leaves the old one or the new one."""

import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, data: bytes) -> None:
    """
    Replace a file in one step: at every moment ``path`` is the old file or the new one, whole.

    The data goes to a file of its own in the same folder, ``.{name}.*.partial``, reaches the disk, and takes
    the old file's place. What a killed process left there is removed; what another one is writing is not.

    Parameters
    ----------
    path : Path
        The file.
    data : bytes
        Its new content.

    Raises
    ------
    OSError
        If it can't be written; the old file is then as it was.
    """
    path = Path(os.path.realpath(path))  # of a link, the file that it leads to is replaced
    _remove_leftovers(path)
    file = _open_partial(path)
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # while it is open, and so locked
                _copy_permissions(path, file)
                os.replace(file.name, path)
        if sys.platform == "win32":  # where an open file can't be renamed
            os.replace(file.name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(file.name)
        raise
    _flush_folder(path.parent)


def _open_partial(path: Path) -> BinaryIO:
    """Return a new file beside ``path``, locked for as long as it is open."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial").open("xb")
        with suppress(OSError):  # a file system without locks: there no leftover is removed
            _lock(file, wait=True)
        # Until it was locked, another process may have taken it for a leftover.
        if os.path.exists(file.name):
            return file
        file.close()


def _remove_leftovers(path: Path) -> None:
    """Remove the partial files that nobody is writing any more."""
    partial = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
    for leftover in path.parent.iterdir():
        if partial.fullmatch(leftover.name):
            with suppress(OSError):
                _remove_unused(leftover)


def _remove_unused(leftover: Path) -> None:
    """Remove a file, or raise OSError if somebody has it open."""
    if sys.platform == "win32":  # which removes no open file
        leftover.unlink()
        return
    with leftover.open("rb") as file:
        _lock(file, wait=False)
        leftover.unlink()


def _lock(file: BinaryIO, *, wait: bool) -> None:
    """Lock an open file, or raise OSError; the lock goes when the file is closed or its process ends."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _copy_permissions(path: Path, file: BinaryIO) -> None:
    """Give the file the permissions of the one it replaces, if there is one."""
    with suppress(FileNotFoundError):
        os.fchmod(file.fileno(), path.stat().st_mode & 0o777)


def _flush_folder(folder: Path) -> None:
    """Bring the renaming to the disk too, where folders can be opened and flushed."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
