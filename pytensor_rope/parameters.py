"""The weights of layers, and how they are first drawn."""

from typing import Any, override

import numpy as np
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import TensorType


class Parameter(TensorSharedVariable):
    """
    A weight of a layer: a shared variable that says how its first value is drawn.

    To pytensor-ml it is a trainable parameter.

    Attributes
    ----------
    initial_mean, initial_std : float
        The normal distribution that first values are drawn from. With a deviation of 0 they are the mean.
    """

    initial_mean: float
    initial_std: float

    @property
    def initializer(self) -> Any:
        """What pytensor-ml draws new values with."""
        from pytensor_rope.pytensor_ml import ParameterInitializer

        return ParameterInitializer(mean=self.initial_mean, std=self.initial_std, dtype=self.type.dtype)

    @override
    def clone(self, **kwargs: Any) -> "Parameter":
        cloned: Parameter = super().clone(**kwargs)
        cloned.initial_mean, cloned.initial_std = self.initial_mean, self.initial_std
        return cloned


def parameter(value: np.ndarray, name: str, *, mean: float = 0.0, std: float = 0.0) -> Parameter:
    """Return a parameter that holds ``value`` itself, not a copy."""
    made = Parameter(type=TensorType(value.dtype, value.shape), value=value, strict=False, name=name)
    made.initial_mean, made.initial_std = mean, std
    return made
