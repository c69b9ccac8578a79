"""What the JAX linker gets instead of an op's generic graph, and the mode that serves it best."""

from pytensor_rope.lowering.jax import attention, decoder_layer, generic, rotate
from pytensor_rope.lowering.jax.linker import jax_mode

__all__ = ["attention", "decoder_layer", "generic", "jax_mode", "rotate"]
