"""The update alone, on one parameter list: ours, and mlx.optimizers' Muon and AdamW under MultiOptimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.optimizers import AdamW, MultiOptimizer, Muon, clip_grad_norm
from mlx.utils import tree_flatten, tree_unflatten

from mlx_amort.backend import set_cpu_cache_limit
from mlx_amort.config.values import Config
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.ops.newton_schulz import Coefficients
from mlx_amort.ops.orthogonalize import orthogonalize
from mlx_amort.optim.partition import owners
from mlx_amort.optim.update import apply_update, init_optimizer_state
from tools.bench.turns import spread

LEARNING_RATE = 1e-4
Tell = Callable[[str], None]
# Takes gradients that nothing else holds, and returns the seconds of the update.
Update = Callable[[Weights], float]


def compare_updates(
    config: Config, turns: int, tell: Tell, shapes: Sequence[tuple[int, int]] = ((1024, 1024), (1024, 4096))
) -> None:
    """Time all three by turns on random gradients, and print ratios, peaks and orthogonality errors."""
    set_cpu_cache_limit()
    parameters, products = config.model.parameters, config.optimizer
    tell(f"update of {config.preset}: {parameters:,} parameters, fp32, Muon and AdamW, clipped")
    kinds: dict[str, Callable[[Config], Update]] = {
        "ours": _ours,
        "mlx.optimizers, compiled": lambda config: _theirs(config, is_compiled=True),
        "mlx.optimizers, eager": lambda config: _theirs(config, is_compiled=False),
    }
    times: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    updates = {name: make(config) for name, make in kinds.items()}
    for turn in range(turns + 1):
        for name, update in updates.items():
            gradients = _random_gradients(config, turn)
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            seconds = update(gradients)
            if turn:
                times.setdefault(name, []).append(seconds)
                peaks[name] = mx.get_peak_memory() - before
    for name, samples in times.items():
        ratios = [other / own for own, other in zip(times["ours"], samples, strict=True)]
        against = "" if name == "ours" else f", ours is faster by {spread(ratios)}"
        tell(f"  {name:26} {spread(samples)} s, {peaks[name] / 1e6:,.0f} MB beyond what is held{against}")
    for shape in shapes:
        ours, theirs = _errors(shape, products.coefficients)
        tell(
            f"  ‖O - UVᵀ‖/√m of {shape[0]} × {shape[1]} with singular values 1/i: {ours:.3f}, mlx {theirs:.3f}"
        )
    tell(f"  coefficients {products.coefficients}, products in {products.muon_dtype}\n")


def _random_gradients(config: Config, seed: int) -> Weights:
    keys = mx.random.split(mx.random.key(seed), len(config.model.parameter_shapes()))
    shapes = config.model.parameter_shapes()
    gradients = {
        name: 1e-3 * mx.random.normal(shape, key=key)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    mx.eval(gradients)
    return gradients


def _ours(config: Config) -> Update:
    weights = ByteLM(config.model).init_weights(0)
    held = {"weights": weights, "state": init_optimizer_state(weights, config.optimizer)}
    mx.eval(held)

    @mx.compile
    def compiled(weights: Weights, gradients: Weights, state: Weights) -> tuple[Weights, Weights, mx.array]:
        return apply_update(
            weights, gradients, state, mx.array(LEARNING_RATE), mx.array(True), config.optimizer
        )

    def update(gradients: Weights) -> float:
        started_at = time.perf_counter()
        held["weights"], held["state"], norm = compiled(held["weights"], gradients, held["state"])
        gradients.clear()
        mx.eval(held, norm)
        return time.perf_counter() - started_at

    return update


def _theirs(config: Config, is_compiled: bool) -> Update:
    own = config.optimizer
    flat = ByteLM(config.model).init_weights(0)
    owner_of = owners({name: value.shape for name, value in flat.items()}, "muon")
    muon = Muon(learning_rate=LEARNING_RATE, momentum=own.momentum, weight_decay=own.weight_decay)
    adamw = AdamW(
        learning_rate=LEARNING_RATE,
        betas=[own.beta1, own.beta2],
        weight_decay=own.weight_decay,
        bias_correction=True,
    )
    optimizer = MultiOptimizer([muon, adamw], [lambda name, _: owner_of[name] == "muon"])
    held: dict[str, Any] = {"weights": tree_unflatten(list(flat.items()))}
    optimizer.init(held["weights"])
    del flat
    mx.eval(held, optimizer.state)

    def apply(weights: Any, gradients: Any) -> Any:
        clipped, _ = clip_grad_norm(gradients, own.clip_norm)  # type: ignore[no-untyped-call]
        return optimizer.apply_gradients(clipped, weights)

    run = mx.compile(apply, inputs=optimizer.state, outputs=optimizer.state) if is_compiled else apply

    def update(gradients: Weights) -> float:
        tree = tree_unflatten(list(gradients.items()))
        gradients.clear()
        started_at = time.perf_counter()
        held["weights"] = run(held["weights"], tree)
        del tree
        mx.eval(held, optimizer.state)
        return time.perf_counter() - started_at

    assert len(tree_flatten(held["weights"])) == len(owner_of)
    return update


def _errors(shape: tuple[int, int], coefficients: Coefficients) -> tuple[float, float]:
    """How far a matrix with singular values 1/i is from orthogonal afterwards, by ours and by mlx's."""
    random = np.random.default_rng(0)
    m = min(shape)
    left = np.linalg.qr(random.normal(size=(shape[0], m)))[0]
    right = np.linalg.qr(random.normal(size=(shape[1], m)))[0]
    matrix = mx.array(((left / np.arange(1, m + 1)) @ right.T).astype(np.float32))
    target = left @ right.T
    found = orthogonalize(matrix, coefficients), Muon(0.0)._zeropower_via_newtonschulz5(matrix, 5)
    return tuple(float(np.linalg.norm(np.array(x) - target) / np.sqrt(m)) for x in found)  # type: ignore[return-value]
