"""What this machine can do: the best rate of each shape of product, and the best copy bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx

from mlx_amort.config.values import Config
from mlx_amort.cost.measure.roofline import ProductRate, Rates, newton_schulz_products
from mlx_amort.model.flops import Product, window_products
from mlx_amort.ops.cpu.products import operand
from mlx_amort.ops.precision import policy_of

# The best of as many tries as fit: a rate is a limit, so the least disturbed try is the one that counts.
_LEAST_TRIES = 5
_PRODUCT_S = 0.1
_COPY_S = 0.3
# One evaluation must outlast its dispatch.
_EVALUATION_S = 5e-3
_MOST_REPEATS = 64
_COPIED_BYTES = 128 << 20


def measure_rates(config: Config) -> Rates:
    """Rates of the shapes that `config` uses.

    Units: flops_per_s; copy_bytes_per_s counts what is read and what is written. Dtypes: those of the policy,
    float32 where the backend multiplies in float32 anyway.
    """
    window_dtype = operand(mx.zeros(1, dtype=policy_of(config.step.precision).compute)).dtype
    muon_dtype = mx.bfloat16 if config.optimizer.muon_dtype == "bfloat16" else mx.float32
    update_dtype = operand(mx.zeros(1, dtype=muon_dtype)).dtype
    # Whichever optimizer the run has, both rooflines are given.
    with_muon = replace(config, optimizer=replace(config.optimizer, name="muon"))
    is_on_cpu = mx.default_device() == mx.Device(mx.cpu)
    seen: dict[tuple[int, int, int, int, mx.Dtype], float] = {}
    products = []
    for phase, shapes, dtype in (
        ("window", window_products(config), window_dtype),
        ("update", newton_schulz_products(with_muon, is_on_cpu), update_dtype),
    ):
        for product in shapes:
            key = (product.stack, product.m, product.k, product.n, dtype)
            if key not in seen:
                seen[key] = _product_rate(product, dtype)
            products.append(ProductRate(phase, product, seen[key]))
    return Rates(tuple(products), _copy_bandwidth())


def _product_rate(product: Product, dtype: mx.Dtype) -> float:
    left = mx.random.normal((product.stack, product.m, product.k)).astype(dtype)
    right = mx.random.normal((product.stack, product.k, product.n)).astype(dtype)
    mx.eval(left, right)
    return product.flops / _best_s(lambda: left @ right, _PRODUCT_S)


def _copy_bandwidth() -> float:
    source = mx.ones(_COPIED_BYTES // 4)
    mx.eval(source)
    return 2 * source.nbytes / _best_s(lambda: mx.negative(source), _COPY_S)


def _best_s(make: Callable[[], mx.array], at_least_s: float) -> float:
    """Least time of one `make` over several tries, each of as many as make its evaluation long enough."""
    once_s = min(_elapsed_s(make, 1) for _ in range(2))
    repeats = max(1, min(_MOST_REPEATS, int(_EVALUATION_S / once_s)))
    best_s, tries, started_at = once_s, 0, time.perf_counter()
    while tries < _LEAST_TRIES or time.perf_counter() - started_at < at_least_s:
        best_s = min(best_s, _elapsed_s(make, repeats) / repeats)
        tries += 1
    return best_s


def _elapsed_s(make: Callable[[], mx.array], repeats: int) -> float:
    started_at = time.perf_counter()
    mx.eval([make() for _ in range(repeats)])
    return time.perf_counter() - started_at
