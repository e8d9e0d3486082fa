"""Into how many pieces a recomputed half of a block is cut; no mlx."""

from __future__ import annotations

from typing import Final

MOST_PIECES: Final = 4
# A piece of fewer rows of products would be slower than the memory it saves is worth.
_LEAST_POSITIONS: Final = 1024


def count_pieces(rows: int, positions: int) -> int:
    """The most pieces, up to 4, into which `rows` divide and that keep 1024 positions each."""
    most = max(1, min(MOST_PIECES, positions // _LEAST_POSITIONS))
    return max(pieces for pieces in range(1, most + 1) if rows % pieces == 0)
