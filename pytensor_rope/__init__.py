"""Layers of a modern decoder for PyTensor."""

__version__ = "0.1.0"
