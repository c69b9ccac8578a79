"""
Registrations with the MLX linker.

Where MLX computes on a CPU, the forms chosen are those that its kernels there are fast at; on a GPU they are
its own fused ones. Which device it is shows when a graph is traced.
"""

from pytensor_rope.lowering.mlx import attention, generic, norm, rotate

__all__ = ["attention", "generic", "norm", "rotate"]
