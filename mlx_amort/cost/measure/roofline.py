"""The roofline: the least that a step can cost at the rates this machine reaches; arithmetic only.

c1 >= 3 · Σ FLOPs per byte of a shape / best rate of that shape
c0 >= bytes of the update / copy bandwidth + Σ FLOPs of Newton-Schulz / best rate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args

from mlx_amort.config.values import Config, OptimizerName
from mlx_amort.cost.fields import Fields
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.model.flops import Product, forward_flops_per_byte, trained_flops
from mlx_amort.ops.constants import WIDTHS
from mlx_amort.optim.stacks import stack_size
from mlx_amort.optim.update_cost import accumulation_bytes, orthogonalizations, update_bytes

OPTIMIZERS: Final[tuple[OptimizerName, ...]] = get_args(OptimizerName)


@dataclass(frozen=True)
class ProductRate:
    """The best rate of one shape of product, in a "window" or in the "update"."""

    phase: str
    product: Product
    flops_per_s: float

    @property
    def name(self) -> str:
        """The product and its shape in words."""
        each = self.product
        return f"{each.name} ({each.stack} × [{each.m}, {each.k}, {each.n}])"

    def to_record(self) -> dict[str, Any]:
        return {"phase": self.phase, **asdict(self.product), "flops_per_s": self.flops_per_s}

    @classmethod
    def from_fields(cls, fields: Fields) -> ProductRate:
        stack, m, k, n = (fields.known_count(key) for key in ("stack", "m", "k", "n"))
        share, again = fields.known_number("share_flops"), fields.number("again_flops") or 0.0
        product = Product(fields.text("name"), stack, m, k, n, share, again)
        return cls(fields.text("phase"), product, fields.rate("flops_per_s"))


@dataclass(frozen=True)
class Rates:
    """What the machine can do with a configuration's shapes (cost/measure/rates.py)."""

    products: tuple[ProductRate, ...]
    copy_bytes_per_s: float

    @property
    def best_flops_per_s(self) -> float:
        return max(product.flops_per_s for product in self.products)

    def better(self, other: Rates) -> Rates:
        """The better of two measurements of each rate: what another program took is not a limit of the machine."""
        products = tuple(
            replace(first, flops_per_s=max(first.flops_per_s, second.flops_per_s))
            for first, second in zip(self.products, other.products, strict=True)
        )
        return Rates(products, max(self.copy_bytes_per_s, other.copy_bytes_per_s))

    def to_record(self) -> dict[str, Any]:
        products = [product.to_record() for product in self.products]
        return {"products": products, "copy_bytes_per_s": self.copy_bytes_per_s}

    @classmethod
    def from_fields(cls, fields: Fields) -> Rates:
        products = tuple(ProductRate.from_fields(each) for each in fields.sections("products", "product"))
        if not products:
            raise fields.refuse("products", "is empty")
        return cls(products, fields.rate("copy_bytes_per_s"))


@dataclass(frozen=True)
class Roofline:
    """The least each cost can be, and the rates it follows from.

    Units: seconds, µs per byte, FLOPs per second, bytes per second. accumulation_s: of one window.
    """

    c1_us_per_byte: float
    c0_s: Mapping[str, float]
    accumulation_s: float
    forward_flops_per_byte: float
    best_flops_per_s: float
    copy_bytes_per_s: float
    products: Mapping[str, float]

    def c1_ratio(self, model: CostModel) -> float:
        """How many times the roofline the fitted c1 is."""
        return model.c1_s_per_byte * 1e6 / self.c1_us_per_byte

    def c0_ratios(self, model: CostModel) -> dict[str, float]:
        """How many times the roofline the fitted c0 of each optimizer is."""
        return {name: c0_s / self.c0_s[name] for name, c0_s in model.c0_s.items() if name in self.c0_s}

    def to_record(self, model: CostModel | None) -> dict[str, Any]:
        """The roofline as JSON, with the ratios of a cost model's costs to it for readers."""
        record = asdict(self)
        if model is not None:
            record |= {"c1_ratio": self.c1_ratio(model), "c0_ratios": self.c0_ratios(model)}
        return record

    @classmethod
    def from_fields(cls, fields: Fields) -> Roofline:
        return cls(
            c1_us_per_byte=fields.rate("c1_us_per_byte"),
            c0_s=fields.numbers("c0_s"),
            accumulation_s=fields.known_number("accumulation_s"),
            forward_flops_per_byte=fields.known_number("forward_flops_per_byte"),
            best_flops_per_s=fields.rate("best_flops_per_s"),
            copy_bytes_per_s=fields.rate("copy_bytes_per_s"),
            products=fields.numbers("products"),
        )


def newton_schulz_products(config: Config, is_on_cpu: bool) -> list[Product]:
    """The products of one update's orthogonalisations in stacks as the update makes them; none for AdamW.

    share_flops in FLOPs per update.
    """
    products = []
    for each in orthogonalizations(config.model.parameter_shapes(), config.optimizer):
        name, stack = (
            f"Newton-Schulz {each.m} × {each.n}",
            stack_size(each.matrices, each.m * each.n, is_on_cpu),
        )
        products.append(Product(f"{name}, long", stack, each.m, each.m, each.n, each.long_flops))
        products.append(Product(f"{name}, square", stack, each.m, each.m, each.m, each.square_flops))
    return products


def roofline_of(config: Config, rates: Rates) -> Roofline:
    """The roofline of a configuration from rates measured for it."""
    window = [rate for rate in rates.products if rate.phase == "window"]
    update = [rate for rate in rates.products if rate.phase == "update"]
    bandwidth = rates.copy_bytes_per_s
    c1_s = sum(trained_flops(rate.product, config) / rate.flops_per_s for rate in window)
    shapes = config.model.parameter_shapes()
    width = WIDTHS[config.step.precision].weights
    products_s = {"muon": sum(rate.product.share_flops / rate.flops_per_s for rate in update)}
    c0_s: dict[str, float] = {
        name: update_bytes(shapes, name, width) / bandwidth + products_s.get(name, 0.0) for name in OPTIMIZERS
    }
    return Roofline(
        c1_us_per_byte=c1_s * 1e6,
        c0_s=c0_s,
        accumulation_s=accumulation_bytes(shapes, width) / bandwidth,
        forward_flops_per_byte=forward_flops_per_byte(config.model),
        best_flops_per_s=rates.best_flops_per_s,
        copy_bytes_per_s=bandwidth,
        products={rate.name: rate.flops_per_s for rate in rates.products},
    )
