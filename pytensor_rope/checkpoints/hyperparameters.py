"""Hyper-parameters read from a checkpoint's metadata in full: what isn't read is refused."""

import math
from typing import Any

import numpy as np

from pytensor_rope.checkpoints.base import CheckpointError, Metadata

REQUIRED: Any = object()


class Hyperparameters:
    """
    The metadata keys under one prefix, each of which has to be asked for.

    Parameters
    ----------
    metadata : dict
        All metadata of the checkpoint.
    prefix : str
        What the keys to read begin with, for example ``"llama."``.

    Raises
    ------
    CheckpointError
        From each method, naming the key: when it is missing without a default, or its value has
        the wrong type or isn't implemented.
    """

    def __init__(self, metadata: Metadata, prefix: str) -> None:
        self._prefix = prefix
        self._unread = {
            key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
        }

    def integer(self, key: str, default: int = REQUIRED) -> int:
        """Return a positive integer."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._refuse(key, value, "a positive integer is needed")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return a positive integer, None if the key is absent or 0."""
        value = self._take(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._refuse(key, value, "a positive integer or 0 is needed")
        return value or None

    def positive(self, key: str) -> float:
        """Return a finite float above 0."""
        value = self.real(key)
        if value <= 0:
            raise self._refuse(key, value, "a positive number is needed")
        return value

    def real(self, key: str, default: float = REQUIRED) -> float:
        """
        Return a finite float.

        A float32 comes back as the shortest decimal that rounds to it, the number that the
        file's writer was given: 1e-5 and not 9.999999747378752e-06.
        """
        value = self._take(key, default)
        if isinstance(value, np.float32):
            value = float(str(value))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refuse(key, value, "a finite number is needed")
        return float(value)

    def integers(self, key: str) -> list[int]:
        """Return a list of integers, empty if the key is absent."""
        value = self._take(key, [])
        numbers = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise self._refuse(key, value, "a list of integers is needed")
        return numbers

    def boolean(self, key: str, default: bool = REQUIRED) -> bool:
        """Return True or False."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._refuse(key, value, "True or False is needed")
        return value

    def period_or_flags(self, key: str, default: int) -> int | list[bool]:
        """Return an integer, not negative, or a list of flags, whichever is there."""
        value = self._take(key, default)
        flags = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(flags, list) and all(flag in (0, 1) for flag in flags):
            return [bool(flag) for flag in flags]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._refuse(key, value, "an integer or a list of flags is needed")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of the strings that are implemented."""
        value = self._take(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self._refuse(key, value, f"implemented are {', '.join(map(repr, choices))}")
        return value

    def expect(self, key: str, *neutral: Any) -> None:
        """Refuse the key unless it is absent or has a value that changes nothing."""
        value = self._take(key, neutral[0])
        if isinstance(value, np.ndarray | list) or value not in neutral:
            raise self._refuse(key, value, "this isn't implemented")

    def ignore(self, *keys: str) -> None:
        """Name keys that don't change what the model computes."""
        for key in keys:
            self._unread.pop(key, None)

    def finish(self) -> None:
        """Refuse every key that nobody asked for."""
        if self._unread:
            names = ", ".join(sorted(self._prefix + key for key in self._unread))
            raise CheckpointError(
                f"the metadata has {names}, which isn't implemented and may change what the model computes."
            )

    def _take(self, key: str, default: Any) -> Any:
        value = self._unread.pop(key, default)
        if value is REQUIRED:
            raise CheckpointError(f"the metadata lacks {self._prefix}{key}.")
        return value

    def _refuse(self, key: str, value: Any, why: str) -> CheckpointError:
        return CheckpointError(f"{self._prefix}{key} is {_shorten(value)}: {why}.")


def _shorten(value: Any) -> str:
    text = f"an array of {len(value)}" if isinstance(value, np.ndarray | list) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
