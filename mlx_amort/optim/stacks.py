"""How many matrices of one shape Muon orthogonalises at once; no mlx."""

from __future__ import annotations

import math
from typing import Final

_MOST_MATRICES: Final = 16
# A stack of 16 matrices of 1024² fills a large GPU. A CPU's BLAS takes matrices one by one anyway, and MLX
# allocates for about a hundred operations ahead: there small stacks save memory, and time with it.
_ELEMENTS_ON_GPU: Final = 1 << 24
_ELEMENTS_ON_CPU: Final = 1 << 18


def stack_size(matrices: int, elements: int, is_on_cpu: bool) -> int:
    """Matrices of a stack, of `matrices` with `elements` numbers each: in even parts within the bounds."""
    bound = _ELEMENTS_ON_CPU if is_on_cpu else _ELEMENTS_ON_GPU
    most = max(1, min(_MOST_MATRICES, bound // elements))
    return math.ceil(matrices / math.ceil(matrices / most))
