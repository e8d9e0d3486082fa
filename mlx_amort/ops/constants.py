"""Sizes and widths that operations and the arithmetic about them share; no mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Backend = Literal["cpu", "metal", "cuda"]
Precision = Literal["bf16", "fp32", "bf16-pure"]

CONVOLUTION_TAPS: Final = 4
CONVOLUTION_TAIL: Final = CONVOLUTION_TAPS - 1
"""Inputs that the convolution keeps of what came before."""

# Queries that attention takes at a time: on the CPU a smaller block skips more of the masked half; a GPU wants fewer,
# larger products. CUDA's kernel is fused in both directions and has no block of ours.
CPU_QUERY_BLOCK: Final = 128
GPU_QUERY_BLOCK: Final = 256
SUB_CHUNK: Final = 64
"""Slots C of a sub-chunk of the recurrence."""
FOLD: Final = 32
"""Columns into which a row is folded on the CPU before it is reduced (ops/cpu/reductions.py)."""

NORM_EPSILON: Final = 1e-5

FLOAT32_BYTES: Final = 4
BFLOAT16_BYTES: Final = 2


@dataclass(frozen=True)
class Widths:
    """Bytes of a number: weights, compute (activations), gradients; the optimizer's state is as wide as weights."""

    weights: int
    compute: int
    gradients: int


WIDTHS: Final[Mapping[Precision, Widths]] = {
    "fp32": Widths(FLOAT32_BYTES, FLOAT32_BYTES, FLOAT32_BYTES),
    "bf16": Widths(FLOAT32_BYTES, BFLOAT16_BYTES, FLOAT32_BYTES),
    "bf16-pure": Widths(BFLOAT16_BYTES, BFLOAT16_BYTES, BFLOAT16_BYTES),
}
