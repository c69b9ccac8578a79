"""
What pytensor-ml is told of our layers and parameters, once it is imported.

It tells parameters by their class. Its classes are abstract base classes, as all of PyTensor's variables
are, and take others as their own by name, those that were made before among them.
"""

from typing import Any, override

import numpy as np
from pytensor.configdefaults import config
from pytensor_ml.base import Layer as MLLayer
from pytensor_ml.params import TrainableParameter
from pytensor_ml.state import Initializer

from pytensor_rope.base import Layer
from pytensor_rope.parameters import Parameter

MLLayer.register(Layer)
TrainableParameter.register(Parameter)


class ParameterInitializer(Initializer):
    """
    Draws a parameter of ours from its normal distribution, in its own dtype.

    Parameters
    ----------
    mean, std : float
        Of the distribution; where ``std`` is 0, every value is ``mean``.
    dtype : str
        The parameter's.
    """

    __props__ = ("mean", "std", "dtype")

    def __init__(self, mean: float, std: float, dtype: str) -> None:
        self.mean, self.std, self.dtype = mean, std, dtype

    @override
    def sample(self, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
        if not self.std:
            return np.full(shape, self.mean, dtype)
        return rng.normal(self.mean, self.std, shape).astype(dtype)

    @override
    def initial_value(self, shape: tuple[int, ...]) -> Any:
        # A network that is loaded has its parameters drawn in floatX, whatever they were when it was saved.
        with config.change_flags(floatX=self.dtype):
            return super().initial_value(shape)
