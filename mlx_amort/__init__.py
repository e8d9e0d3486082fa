"""Train byte language models on MLX, and know beforehand what an optimizer step will cost."""

from mlx_amort.config.values import Config
from mlx_amort.errors import UserError

__version__ = "0.1.0"

__all__ = ["Config", "UserError", "__version__"]
