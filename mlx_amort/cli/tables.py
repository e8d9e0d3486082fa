"""Aligned columns for the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def align(heading: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """Lines of a table: text columns flush left, the others (numbers) flush right."""
    widths = [max(columns_of(line[i]) for line in [heading, *rows]) for i in range(len(heading))]
    lines = []
    for line in [heading, *rows]:
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
