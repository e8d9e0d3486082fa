"""Where mx.compile must not fuse on the CPU."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.paths import active_path


def fence(x: mx.array) -> mx.array:
    """`x`, cut off from fusion with what follows (free when `x` is contiguous).

    mx.compile fuses elementwise chains up to a depth of 11 and recomputes a broadcast operand for every
    element it meets; on the CPU a chain cut in the wrong place falls to a strided kernel, three times slower.
    """
    return mx.contiguous(x) if active_path() == "cpu" else x
