"""FLOPs that a window cannot do without, counted from the configuration; no mlx.

Every count is a lower bound of the arithmetic, not a trace of the program: causal attention meets (S + 1) / 2
keys per byte, the recurrence is counted by its definition, the elementwise work not at all. A multiply-add is
two FLOPs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mlx_amort.config.model import BlockKind, ModelConfig
from mlx_amort.config.values import Config, StepConfig
from mlx_amort.errors import assert_never

# Backward multiplies twice as often as forward: once for the gradient of each factor.
TRAINING_PASSES = 3
_HEAD = "output head"

# Rows of a window beyond which a product's rate no longer rises, so that measuring it stays short.
_MEASURED_ROWS = 4096


@dataclass(frozen=True)
class Product:
    """One shape of matrix product, [stack, m, k] times [stack, k, n], and how much of the work has it.

    share_flops: what is done in this shape, in forward FLOPs per byte (cost/measure/roofline.py: FLOPs per update).
    again_flops: how much of that recomputation does once more: all but the last product of each half of a block, which
    only its output needs, and the head.
    """

    name: str
    stack: int
    m: int
    k: int
    n: int
    share_flops: float
    again_flops: float = 0.0

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
            flops = of_byte * 2 * out * into
            last = [(model.hidden, model.hidden), (model.hidden, model.ffn)].count((out, into))
            name = f"{length}: {into} to {out}"
            products.append(Product(name, 1, m, into, out, count * flops, (count - last) * flops))
        width, heads = model.head_width, model.heads
        stack = max(1, min(together * heads, _MEASURED_ROWS * heads // rows[length]))
        match kind:
            case "attention":
                pairs = (rows[length] + 1) / 2
                flops = of_byte * 2 * 2 * pairs * model.hidden
                attention = f"{length}: attention"
                products.append(Product(attention, stack, rows[length], width, rows[length], flops, flops))
            case "recurrent":
                flops = of_byte * 2 * 2 * width * model.hidden
                recurrence = f"{length}: recurrence"
                products.append(Product(recurrence, stack, rows[length], width, width, flops, flops))
            case unknown:
                assert_never(unknown)
    head_rows = min(_MEASURED_ROWS, together * model.seq)
    head = 2.0 * model.hidden * model.vocabulary
    products.append(Product(_HEAD, 1, head_rows, model.hidden, model.vocabulary, head))
    return products


def forward_flops_per_byte(model: ModelConfig) -> float:
    """FLOPs of one byte's forward pass."""
    return sum(product.share_flops for product in window_products(Config(model=model)))


def training_flops_per_byte(config: Config) -> float:
    """FLOPs of one byte's training: three forward passes, and what recomputation does again."""
    return sum(trained_flops(product, config) for product in window_products(config))


def trained_flops(product: Product, config: Config) -> float:
    """A product's FLOPs per byte of a step.

    Forward and backward in the windows that have a gradient (`tbptt: last`: the last), forward without the head in the
    others.
    """
    step = config.step
    trained = _trained_share(step)
    passes = TRAINING_PASSES * trained + (0.0 if product.name == _HEAD else 1.0 - trained)
    again = trained * product.again_flops if step.activation_checkpointing else 0.0
    return float(passes * product.share_flops + again)


def _trained_share(step: StepConfig) -> float:
    """The share of a step's chunks that has a gradient."""
    match step.tbptt:
        case "consecutive":
            return 1.0
        case "last":
            return step.effective_window / step.chunks
        case unknown:
            assert_never(unknown)


def _block_matrices(model: ModelConfig, kind: BlockKind) -> list[tuple[int, int]]:
    """[out, in] of the matrices that one block multiplies with; the few rows of decay_w are left out."""
    width = model.hidden
    matrices = [(3 * width, width), (width, width), (model.ffn, width), (width, model.ffn)]
    match kind:
        case "attention":
            return matrices
        case "recurrent":
            return [*matrices, (width, width)]
        case unknown:
            assert_never(unknown)
