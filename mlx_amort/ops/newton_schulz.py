"""Which form of Newton-Schulz a matrix takes and what it costs, for those who run it and those who count; no mlx."""

from __future__ import annotations

from typing import Final

# Quintic steps: each coefficient table of ops/orthogonalize.py has as many.
STEPS: Final = 5
# Long side over short from which the Gram form is cheaper: 4m²n + 34m³ operations against 20m²n + 10m³.
_GRAM_RATIO: Final = 1.5


def takes_gram_form(m: int, n: int, is_float32: bool) -> bool:
    """Whether a matrix [m, n], in either order, is stepped on its Gram matrix; in bfloat16 that drifts off."""
    return is_float32 and max(m, n) >= _GRAM_RATIO * min(m, n)


def count_flops(m: int, n: int, is_float32: bool) -> tuple[float, float]:
    """FLOPs of one matrix, m the shorter side: in products [m, m] [m, n], and in products [m, m] [m, m]."""
    if takes_gram_form(m, n, is_float32):
        return 4.0 * m * m * n, 34.0 * m**3
    return 4.0 * STEPS * m * m * n, 2.0 * STEPS * m**3
