"""FLOPs that a window cannot do without, counted from the configuration; no mlx.

Every count is a lower bound of the arithmetic, not a trace of the program: causal attention meets (S + 1) / 2
keys a byte, the recurrence is counted by its definition, the elementwise work not at all. A multiply-add is
two FLOPs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mlx_amort.config import Config, ModelConfig

# Backward multiplies twice as often as forward: once for the gradient of each factor.
TRAINING_PASSES = 3
RECOMPUTING_PASSES = 4

# Rows of a window beyond which a product's rate no longer rises, so that measuring it stays short.
_MEASURED_ROWS = 4096


@dataclass(frozen=True)
class Product:
    """One shape of matrix product, [stack, m, k] times [stack, k, n], and how much of the work has it.

    share_flops: what is done in this shape, in forward FLOPs a byte (profiler/floors.py: FLOPs an update).
    """

    name: str
    stack: int
    m: int
    k: int
    n: int
    share_flops: float

    @property
    def flops(self) -> float:
        """FLOPs of one such product as it is measured."""
        return 2.0 * self.stack * self.m * self.k * self.n


def window_products(config: Config) -> list[Product]:
    """The products of a forward pass by shape; their shares sum to `forward_flops_per_byte`.

    Rows of a product are what one window gives it (B·W·S bytes, or B·W·N slots), at most 4096.
    """
    model, step = config.model, config.step
    rows = {"bytes": model.seq, "slots": model.slots}
    share = {"bytes": 1.0, "slots": model.slots / model.seq}
    together = step.batch * step.effective_window
    products = []
    for (length, kind), blocks in Counter(zip(model.block_lengths, model.block_kinds, strict=True)).items():
        m, of_byte = min(_MEASURED_ROWS, together * rows[length]), blocks * share[length]
        for (out, into), count in Counter(_block_matrices(model, kind)).items():
            flops = of_byte * count * 2 * out * into
            products.append(Product(f"{length}: {into} to {out}", 1, m, into, out, flops))
        width, heads = model.head_width, model.heads
        stack = max(1, min(together * heads, _MEASURED_ROWS * heads // rows[length]))
        if kind == "attention":
            pairs = (rows[length] + 1) / 2
            flops = of_byte * 2 * 2 * pairs * model.hidden
            products.append(Product(f"{length}: attention", stack, rows[length], width, rows[length], flops))
        else:
            flops = of_byte * 2 * 2 * width * model.hidden
            products.append(Product(f"{length}: recurrence", stack, rows[length], width, width, flops))
    head_rows = min(_MEASURED_ROWS, together * model.seq)
    head = 2.0 * model.hidden * model.vocabulary
    products.append(Product("output head", 1, head_rows, model.hidden, model.vocabulary, head))
    return products


def forward_flops_per_byte(model: ModelConfig) -> float:
    """FLOPs of one byte's forward pass."""
    return sum(product.share_flops for product in window_products(Config(model=model)))


def training_flops_per_byte(config: Config) -> float:
    """FLOPs of one byte's forward and backward pass: three forward passes, four with recomputation."""
    passes = RECOMPUTING_PASSES if config.step.activation_checkpointing else TRAINING_PASSES
    return passes * forward_flops_per_byte(config.model)


def _block_matrices(model: ModelConfig, kind: str) -> list[tuple[int, int]]:
    """[out, in] of the matrices that one block multiplies with; the few rows of decay_w are left out."""
    width = model.hidden
    matrices = [(3 * width, width), (width, width), (model.ffn, width), (width, model.ffn)]
    return [*matrices, (width, width)] if kind == "recurrent" else matrices
