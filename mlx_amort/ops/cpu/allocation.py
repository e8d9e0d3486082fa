"""How far ahead of the computation the CPU backend may allocate."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.paths import active_path

# MLX's CPU backend dispatches up to 110 calls ahead of the one that runs, about two an operation, and allocates for
# all of them; so many empty operations keep it from allocating already for what comes after them.
_EMPTY_OPERATIONS = 60


def wait_for_allocations(token: mx.array) -> mx.array:
    """`token`, behind so many empty operations that nothing is allocated yet for what waits for it."""
    for _ in range(_EMPTY_OPERATIONS if active_path() == "cpu" else 0):
        (token,) = mx.depends([token], token)
    return token
