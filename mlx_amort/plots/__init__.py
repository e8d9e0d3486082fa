"""Every figure, drawn from records on disk: a profile's rows and fit, a run's metrics."""

from mlx_amort.plots.cost import cost_curve, residuals
from mlx_amort.plots.peaks import memory
from mlx_amort.plots.runs import compare, loss_and_rate

__all__ = ["compare", "cost_curve", "loss_and_rate", "memory", "residuals"]
