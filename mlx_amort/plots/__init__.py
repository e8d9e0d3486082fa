"""Every figure: cost curve, residuals and peak memory of a profile, loss and rate of a run, runs compared."""

from mlx_amort.plots.settings import load_matplotlib

load_matplotlib()

from mlx_amort.plots.comparison import RunCurve, compare  # noqa: E402
from mlx_amort.plots.cost import cost_curve  # noqa: E402
from mlx_amort.plots.figure import describe_origin  # noqa: E402
from mlx_amort.plots.peaks import memory  # noqa: E402
from mlx_amort.plots.residuals import residuals  # noqa: E402
from mlx_amort.plots.runs import loss_and_rate  # noqa: E402

__all__ = ["RunCurve", "compare", "cost_curve", "describe_origin", "loss_and_rate", "memory", "residuals"]
