"""Aligned columns for the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from mlx_amort.errors import printable


def align(heading: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """Lines of a table: text columns flush left, the others (numbers) flush right."""
    # A cell may hold a name, and a name anything.
    shown = [[printable(text) for text in line] for line in [heading, *rows]]
    widths = [max(columns_of(line[i]) for line in shown) for i in range(len(heading))]
    lines = []
    for line in shown:
        cells = []
        for i, text in enumerate(line):
            padding = " " * (widths[i] - columns_of(text))
            cells.append(text + padding if i in text_columns else padding + text)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide character, none for one that is put on another."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
