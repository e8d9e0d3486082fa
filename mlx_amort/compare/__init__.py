"""Runs compared where they have seen equally much, or taken equally long; no mlx.

Quality is interpolated on each run's own validation curve, linearly between two validations of the same text,
and never beyond the first or last of them: where a run has no figure, the answer is None. What a run validated
over more text at its end is a figure of its own. Where validations meet at fewer than two points, training losses
are compared too.
"""

from mlx_amort.compare.caveats import BOOKKEEPING
from mlx_amort.compare.comparison import Comparison, compare
from mlx_amort.compare.comparison_points import ComparisonPoint
from mlx_amort.compare.curves import Curve, TrainingLoss, read_curve

__all__ = ["BOOKKEEPING", "Comparison", "ComparisonPoint", "Curve", "TrainingLoss", "compare", "read_curve"]
