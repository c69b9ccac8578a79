"""Registrations with the Numba linker: one pass over the data where the generic graph takes several."""

from pytensor_rope.lowering.numba import activations, angles, attention, norm, rotate, write_tokens

__all__ = ["activations", "angles", "attention", "norm", "rotate", "write_tokens"]
