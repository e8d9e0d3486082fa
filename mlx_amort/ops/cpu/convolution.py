"""Into which tiles the convolution's gradient is cut."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.constants import CONVOLUTION_TAIL
from mlx_amort.ops.paths import active_path

# Up to so many tiles, one after another, of so many positions at least.
_MOST_TILES = 4
_LEAST_TILE = 256


def gradient_tiles(rows: int, slots: int, dtype: mx.Dtype) -> list[tuple[int, int]]:
    """Slots [start, end) of tiles; more than one only where memory peaks at float32 copies of bfloat16, on the CPU."""
    count = 1
    if active_path() == "cpu" and dtype != mx.float32:
        count = max(1, min(_MOST_TILES, rows * slots // _LEAST_TILE))
    length = max(CONVOLUTION_TAIL, -(-slots // count))
    return [(start, min(start + length, slots)) for start in range(0, slots, length)]
