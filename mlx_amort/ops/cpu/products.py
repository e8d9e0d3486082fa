"""Products of 16-bit matrices.

MLX's CPU backend computes them without the BLAS, about 30 times slower than float32 ones. There operands are rounded to
16 bits, multiplied in float32 and the result rounded: the numbers of a GPU that accumulates in float32.
"""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.paths import active_path


def operand(x: mx.array) -> mx.array:
    """`x` in the dtype the backend multiplies: float32 on the CPU, else its own."""
    return x.astype(mx.float32) if active_path() == "cpu" else x
