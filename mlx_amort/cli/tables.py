"""Aligned columns for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_amort.errors import printable


def align(heading: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """Lines of a table: text columns flush left, the others (numbers) flush right."""
    # A cell may hold a name, and a name anything.
    shown = [[printable(text) for text in line] for line in [heading, *rows]]
    widths = [max(len(line[i]) for line in shown) for i in range(len(heading))]
    lines = []
    for line in shown:
        cells = [
            text.ljust(widths[i]) if i in text_columns else text.rjust(widths[i])
            for i, text in enumerate(line)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
