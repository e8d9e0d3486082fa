"""The least that a step can cost on this machine, and how far the fitted costs are from it; arithmetic only.

c1 >= 3 · Σ FLOPs a byte of a shape / best rate of that shape
c0 >= bytes of the update / copy bandwidth + Σ FLOPs of Newton-Schulz / best rate
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_amort.config.values import Config, OptimizerName
from mlx_amort.cost.profile_file import count_windows
from mlx_amort.model.flops import Product, forward_flops_per_byte, trained_flops
from mlx_amort.ops.constants import WIDTHS
from mlx_amort.optim.stacks import stack_size
from mlx_amort.optim.update_cost import accumulation_bytes, orthogonalizations, update_bytes

OPTIMIZERS: Final[tuple[OptimizerName, ...]] = ("muon", "adamw")


def newton_schulz_products(config: Config, is_on_cpu: bool) -> list[Product]:
    """The products of one update's orthogonalisations in stacks as the update makes them; none for AdamW.

    share_flops in FLOPs an update.
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


def floors_of(config: Config, rates: Mapping[str, Any]) -> dict[str, Any]:
    """The floors of a configuration from rates measured for it (cost/measure/rates.py), and those rates.

    Units: seconds, µs a byte, FLOPs a second, bytes a second.
    """
    window = [product for product in rates["products"] if product["phase"] == "window"]
    update = [product for product in rates["products"] if product["phase"] == "update"]
    bandwidth = rates["copy_bytes_per_s"]
    c1_s = sum(trained_flops(product, config) / product["flops_per_s"] for product in window)
    shapes = config.model.parameter_shapes()
    width = WIDTHS[config.step.precision].weights
    products_s = {"muon": sum(product["share_flops"] / product["flops_per_s"] for product in update)}
    c0_s = {
        name: update_bytes(shapes, name, width) / bandwidth + products_s.get(name, 0.0) for name in OPTIMIZERS
    }
    return {
        "c1_us_per_byte": c1_s * 1e6,
        "c0_s": c0_s,
        "accumulation_s": accumulation_bytes(shapes, width) / bandwidth,
        "forward_flops_per_byte": forward_flops_per_byte(config.model),
        "best_flops_per_s": max(product["flops_per_s"] for product in rates["products"]),
        "copy_bytes_per_s": bandwidth,
        "products": {_shape_name(product): product["flops_per_s"] for product in rates["products"]},
    }


def best_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The better of two measurements of each rate: what another program took is no limit of the machine."""
    products = [
        {**first, "flops_per_s": max(first["flops_per_s"], second["flops_per_s"])}
        for first, second in zip(one["products"], other["products"], strict=True)
    ]
    copied = max(one["copy_bytes_per_s"], other["copy_bytes_per_s"])
    return {"products": products, "copy_bytes_per_s": copied}


def _shape_name(product: Mapping[str, Any]) -> str:
    shape = ", ".join(str(product[axis]) for axis in ("m", "k", "n"))
    return f"{product['name']} ({product['stack']} × [{shape}])"


def compare_with_floors(floors: dict[str, Any], fit: Mapping[str, Any]) -> dict[str, Any]:
    """`floors` with how many times its floor each fitted cost is: c1_times_floor and c0_times_floor."""
    return {
        **floors,
        "c1_times_floor": fit["c1_us_per_byte"] / floors["c1_us_per_byte"],
        "c0_times_floor": {name: c0_s / floors["c0_s"][name] for name, c0_s in fit["c0_s"].items()},
    }


def describe_floors(floors: Mapping[str, Any], fit: Mapping[str, Any] | None) -> list[str]:
    """Sentences: each fitted cost beside its floor, or the floors alone where nothing was fitted."""
    if fit is None or "c1_times_floor" not in floors:
        least = ", ".join(f"c0 of {name} {c0_s:.3g} s" for name, c0_s in floors["c0_s"].items())
        return [f"floors: c1 {floors['c1_us_per_byte']:.3g} µs/byte, {least}"]
    lines = [
        f"c1 = {floors['c1_times_floor']:.1f} × its floor: {fit['c1_us_per_byte']:.4g} against "
        f"{floors['c1_us_per_byte']:.3g} µs/byte "
        f"({floors['forward_flops_per_byte'] / 1e6:.3g} MFLOP a byte forward, "
        f"best product {floors['best_flops_per_s'] / 1e9:,.0f} GFLOP/s)"
    ]
    for name, times in floors["c0_times_floor"].items():
        lines.append(
            f"c0 of {name} = {times:.1f} × its floor: {fit['c0_s'][name]:.3g} "
            f"against {floors['c0_s'][name]:.3g} s (copy {floors['copy_bytes_per_s'] / 1e9:.3g} GB/s)"
        )
    return lines


def describe_phases(
    rows: Sequence[Mapping[str, Any]], floors: Mapping[str, Any], c0_s: Mapping[str, float]
) -> list[str]:
    """Sentences: where the largest step of each optimizer spends its time; its update beside the fitted c0.

    Accumulation happens inside the compiled window and cannot be timed apart: it is what moving its bytes
    takes at the copy bandwidth, once a window.
    """
    lines = []
    for name in OPTIMIZERS:
        own = [row for row in rows if row["optimizer"] == name and row.get("phases")]
        if not own:
            continue
        row = max(own, key=lambda row: row["bytes_per_step"])
        parts = ", ".join(f"{part} {seconds / row['step_s']:.1%}" for part, seconds in row["phases"].items())
        windows = count_windows(row["accum"], row["chunks"], row["window"])
        share = windows * floors["accumulation_s"] / row["step_s"]
        lines.append(
            f"{name}, B {row['batch']} K {row['chunks']} S {row['seq']}: {parts}; "
            f"of the windows, accumulation about {share:.1%}"
        )
        if name in c0_s:
            update = f"update timed alone {statistics.median(row['update_s'] for row in own):.3g} s"
            lines.append(f"{name}: {update}, fitted c0 {c0_s[name]:.3g} s")
    return lines
