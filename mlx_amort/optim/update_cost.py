"""FLOPs and bytes that an update cannot do without, counted from the parameters' shapes; no mlx."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_amort.config.values import OptimizerConfig
from mlx_amort.ops.newton_schulz import count_flops
from mlx_amort.optim.partition import BUFFERS, owners

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Orthogonalization:
    """All matrices of one shape that an update orthogonalises, m the shorter side.

    FLOPs per update, of all of them: long_flops in products [m, m] [m, n], square_flops in [m, m] [m, m].
    """

    m: int
    n: int
    matrices: int
    long_flops: float
    square_flops: float


def orthogonalizations(shapes: Shapes, config: OptimizerConfig) -> list[Orthogonalization]:
    """What an update orthogonalises, shape by shape; nothing for AdamW.

    Source of the counts: ops/newton_schulz.py, which chooses the form too.
    """
    owner_of = owners(shapes, config.name)
    counts = Counter((min(shape), max(shape)) for name, shape in shapes.items() if owner_of[name] == "muon")
    found = []
    for (m, n), matrices in counts.items():
        long, square = count_flops(m, n, config.muon_dtype == "float32", config.coefficients)
        found.append(Orthogonalization(m, n, matrices, matrices * long, matrices * square))
    return found


def update_bytes(shapes: Shapes, optimizer: str, width: int) -> int:
    """Bytes that one update moves: weight, gradient and the owner's buffers read, weight and buffers written.

    `width`: bytes of a number. In float32 28 bytes per parameter of AdamW, 20 of Muon.
    """
    moved = 0
    for name, owner in owners(shapes, optimizer).items():
        moved += (3 + 2 * BUFFERS[owner]) * math.prod(shapes[name]) * width
    return moved


def accumulation_bytes(shapes: Shapes, width: int) -> int:
    """Bytes that adding one window's gradient to the accumulator moves: two arrays read, one written."""
    return 3 * sum(math.prod(shape) for shape in shapes.values()) * width
