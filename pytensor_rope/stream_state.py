"""The keys and values of streams that share compiled functions, and with them the shared variables."""

from collections.abc import Callable
from threading import RLock
from typing import Any, Self

import numpy as np
from pytensor.compile.sharedvalue import shared

from pytensor_rope.backends import CompiledFunction
from pytensor_rope.decoder import DecoderState


class StreamState:
    """
    One stream's state, in shared variables that the streams forked from it use too.

    A compiled function reads and writes the shared variables it was built with. So those who share a
    function take turns: whoever calls puts its arrays into the variables, and takes out those of the one
    before. Arrays are passed by reference and never copied, on every backend; what is in place or donated
    is always an array of the stream that calls.

    Parameters
    ----------
    state : DecoderState
        The state to start from, as NumPy arrays. They are taken over.

    Attributes
    ----------
    functions : dict
        What has been compiled for these variables, by name.
    """

    def __init__(self, state: DecoderState) -> None:
        self._variables = DecoderState(
            keys=[_share(f"keys.{i}", value) for i, value in enumerate(state.keys)],
            values=[_share(f"values.{i}", value) for i, value in enumerate(state.values)],
            length=_share("length", state.length),
        )
        self._turn = _Turn(self)
        self._parked: list[Any] = []
        self.functions: dict[str, CompiledFunction] = {}

    def fork(self) -> Self:
        """Return a copy of the state that takes turns with this one."""
        with self._turn.lock:
            copies = list(self.copies().values())
            twin = object.__new__(type(self))
            twin._variables, twin._turn, twin._parked = self._variables, self._turn, copies
            twin.functions = self.functions
            return twin

    def variables(self) -> DecoderState:
        """Return the shared variables, holding this stream's arrays until another stream is used."""
        with self._turn.lock:
            self._take_turn()
            return self._variables

    def call(self, function: CompiledFunction, *args: Any) -> Any:
        """Call a function compiled for the variables on this stream's arrays."""
        with self._turn.lock:
            self._take_turn()
            return function(*args)

    def compiled(self, name: str, compile_function: Callable[[], CompiledFunction]) -> "FunctionOfState":
        """Return the function of a name, compiled when it is first asked for, to be called on this state."""
        with self._turn.lock:
            if name not in self.functions:
                self.functions[name] = compile_function()
        return FunctionOfState(self.functions[name], self)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as NumPy arrays; they may be views of what is yet written to."""
        with self._turn.lock:
            self._take_turn()
            return {variable.name: np.asarray(variable.get_value(borrow=True)) for variable in self._all()}

    def copies(self) -> dict[str, np.ndarray]:
        """Return copies of the arrays by name, which nothing writes to any more."""
        with self._turn.lock:
            return {name: np.array(array) for name, array in self.arrays().items()}

    def replace(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over other arrays of the same names, shapes and dtypes."""
        with self._turn.lock:
            self._take_turn()
            for variable in self._all():
                variable.set_value(arrays[variable.name], borrow=True)

    def set_length(self, length: np.ndarray) -> None:
        """Set the number of tokens that each row has read, ``(batch,)``, int32; the array is taken over."""
        with self._turn.lock:
            self._take_turn()
            self._variables.length.set_value(length, borrow=True)

    def _all(self) -> list[Any]:
        state = self._variables
        return [*state.keys, *state.values, state.length]

    def _take_turn(self) -> None:
        holder = self._turn.holder
        if holder is self:
            return
        # The storage itself: a value that lives on a device stays there.
        storages = [variable.container.storage for variable in self._all()]
        holder._parked = [storage[0] for storage in storages]
        for storage, array in zip(storages, self._parked, strict=True):
            storage[0] = array
        self._parked = []
        self._turn.holder = self


class FunctionOfState:
    """
    A compiled function, called on one stream's own state.

    Attributes
    ----------
    compiled : pytensor.compile.executor.Function
        The PyTensor function that is called.
    """

    def __init__(self, function: CompiledFunction, state: StreamState) -> None:
        self.compiled = function.compiled
        self._function = function
        self._state = state

    def __call__(self, *args: Any) -> Any:
        """Compute the outputs, as NumPy arrays."""
        return self._state.call(self._function, *args)


class compiled_once:
    """
    Turn a method that compiles a function into the function, called on the stream's own state.

    It is compiled when it is first needed, once for a stream and all its forks.
    """

    def __init__(self, compile_function: Callable[[Any], CompiledFunction]) -> None:
        self._compile_function = compile_function
        self._name = compile_function.__name__

    def __get__(self, stream: Any, owner: type | None = None) -> FunctionOfState:
        state: StreamState = stream._own_state
        return state.compiled(self._name, lambda: self._compile_function(stream))


class _Turn:
    """Whose arrays are in the variables, and the lock that lets one thread at a time change that."""

    def __init__(self, holder: StreamState) -> None:
        self.holder = holder
        self.lock = RLock()


def _share(name: str, value: np.ndarray) -> Any:
    return shared(value, name, borrow=True, shape=value.shape)
