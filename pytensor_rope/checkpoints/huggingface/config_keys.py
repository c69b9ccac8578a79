"""A ``config.json`` read in full: what isn't read is refused."""

from collections.abc import Mapping
from typing import Any, override

from pytensor_rope.checkpoints.base import CheckpointError
from pytensor_rope.checkpoints.hyperparameters import REQUIRED, Hyperparameters
from pytensor_rope.checks import finite_number


class ConfigKeys(Hyperparameters):
    """
    The keys of a ``config.json``, each of which has to be asked for.

    A key that is left out has the default of the model's configuration class. One that is null has no
    value, which is something else where that default is one.

    Parameters
    ----------
    config : mapping
        The parsed file.
    defaults : mapping
        What the configuration class fills in where a key is left out.

    Raises
    ------
    CheckpointError
        From each method, naming the key: when it is missing without a default, or its value has the wrong
        type or isn't implemented.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        super().__init__(dict(config), "")
        self.config = config
        self._defaults = defaults
        self._spelling: dict[str, str] = {}

    @property
    def model_type(self) -> str:
        """The model's type."""
        return str(self.config["model_type"])

    def rename(self, **names: str) -> None:
        """Read a key under another name, refusing different values under both."""
        for name, other in names.items():
            if name not in self._unread:
                continue
            value = self._unread.pop(name)
            self._spelling[other] = name
            known = self._unread.setdefault(other, value)
            if known != value:
                raise self.refuse(name, value, f"{other} is {known!r}, and both are one key")

    def positive(self, key: str) -> float:
        """Return a positive finite number."""
        value = self._take(key)
        try:
            number = finite_number(key, value)
        except (TypeError, ValueError):
            number = 0.0
        if number <= 0:
            raise self.refuse(key, value, "a positive number is needed")
        return number

    def optional_positive(self, key: str) -> float | None:
        """Return a positive finite number, None if the key is null."""
        return self.positive(key) if self.has_value(key) else self._take(key, None)

    def optional_integer(self, key: str) -> int | None:
        """Return a positive integer, None if the key is null."""
        return self.integer(key) if self.has_value(key) else self._take(key, None)

    def count(self, key: str) -> int:
        """Return an integer of at least 0."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(key, value, "an integer of at least 0 is needed")
        return value

    def switch(self, key: str) -> bool:
        """Return whether a switch is on. One that is null is off."""
        value = self._take(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false is needed")
        return value

    def translate(self, key: str, names: Mapping[str, str]) -> str:
        """Return our name for one of the names that are implemented."""
        value = self._take(key)
        if not isinstance(value, str) or value not in names:
            raise self.refuse(key, value, f"implemented are {', '.join(map(repr, names))}")
        return names[value]

    def one_for_each(self, key: str, n_layer: int, names: Mapping[Any, bool]) -> list[bool] | None:
        """Return what each layer's entry of a list means, None if there is no list."""
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n_layer:
            raise self.refuse(key, value, f"a list with one entry for each of {n_layer} layers is needed")
        for entry in value:
            if type(entry) not in (str, int) or entry not in names:
                raise self.refuse(key, entry, f"implemented are {', '.join(map(repr, names))}")
        return [names[entry] for entry in value]

    def has_value(self, key: str) -> bool:
        """Return whether a key, or its default if it is left out, has a value."""
        return self._unread.get(key, None if key in self._unread else self._defaults.get(key)) is not None

    def refuse(self, key: str, value: Any, why: str) -> CheckpointError:
        """Return the error that refuses the value of a key."""
        return self._refuse(key, value, why)

    @override
    def _refuse(self, key: str, value: Any, why: str) -> CheckpointError:
        return super()._refuse(self._spelling.get(key, key), value, why)

    @override
    def finish(self) -> None:
        """Refuse every key that nobody asked for and that has a value."""
        left = sorted(key for key, value in self._unread.items() if value is not None)
        if left:
            raise CheckpointError(
                f"the configuration of this {self.model_type} has {', '.join(left)}, which isn't "
                f"implemented and may change what the model computes. Take it out if it doesn't."
            )

    @override
    def _take(self, key: str, default: Any = REQUIRED) -> Any:
        if key not in self._unread:
            self._unread[key] = self._defaults.get(key)
        value = self._unread.pop(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"the configuration has no value for {key}. Add it.")
        return default
