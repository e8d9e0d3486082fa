"""Lines of Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tools.bench.turns import spread


def figure(bits: float) -> str:
    return f"{bits:.4f}" if math.isfinite(bits) else "diverged"


def _difference(own: Sequence[float], reference: Sequence[float]) -> str:
    if not all(map(math.isfinite, (*own, *reference))):
        return ""
    values = [one - other for one, other in zip(own, reference, strict=True)]
    return f"{statistics.fmean(values):+.4f} ({min(values):+.4f}..{max(values):+.4f})"


def table_line(*cells: object) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head(*cells: str) -> str:
    """The two lines that a Markdown table begins with."""
    return f"{table_line(*cells)}\n|{'---|' * len(cells)}"


RESULT_CELLS = ("corpus", "choice", "compared at", "steps", "bits per byte", "min..max", "less the reference")


def result_line(
    data: str, choice: str, at: str, steps: int, bits: Sequence[float], reference: Sequence[float]
) -> str:
    """A choice's line: mean and range of bits per byte over seeds, and of its difference to the reference by seed."""
    span = f"{figure(min(bits))}..{figure(max(bits))}"
    less = "" if bits is reference else _difference(bits, reference)
    return table_line(data, choice, at, steps, figure(statistics.fmean(bits)), span, less)


def times_lines(samples_s: Mapping[str, Sequence[float]]) -> list[str]:
    """The table of seconds per step: medians, and the ratio to the reference turn by turn."""
    reference, *_ = samples_s
    lines = [table_head("choice", "seconds per step", f"over {reference}, by turns")]
    for name, samples in samples_s.items():
        ratios = [own / other for own, other in zip(samples, samples_s[reference], strict=True)]
        lines.append(table_line(name, f"{statistics.median(samples):.4f}", spread(ratios)))
    return lines
