"""Runs held against each other where they have seen equally much, or taken equally long; no mlx.

Quality is interpolated on each run's own validation curve, linearly between two validations of the same text,
and never beyond the first or last of them: where a run has no figure, the answer is None. What a run validated
over more text at its end is a figure of its own.
"""

from mlx_amort.compare.comparison import Comparison, compare
from mlx_amort.compare.curves import Curve, read_curve
from mlx_amort.compare.doubts import BOOKKEEPING
from mlx_amort.compare.places import Place

__all__ = ["BOOKKEEPING", "Comparison", "Curve", "Place", "compare", "read_curve"]
