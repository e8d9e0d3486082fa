"""Aligned columns for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def align(heading: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """Lines of a table: text columns flush left, the others (numbers) flush right."""
    widths = [max(len(line[i]) for line in [heading, *rows]) for i in range(len(heading))]
    lines = []
    for line in [heading, *rows]:
        cells = [
            text.ljust(widths[i]) if i in text_columns else text.rjust(widths[i])
            for i, text in enumerate(line)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
