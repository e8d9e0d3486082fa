"""A machine that obeys a cost model exactly, for sweeps without measuring: no clock, no process, no mlx."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.measure.request import SweepRequest, configure_first
from mlx_amort.cost.measure.roofline import ProductRate, Rates, newton_schulz_products
from mlx_amort.cost.profile import Fact
from mlx_amort.model.flops import window_products

MACHINE: dict[str, Fact] = {
    "processor": "pretended",
    "cores": 2,
    "backend": "cpu",
    "device_name": "none",
    "blas": "none",
    "memory_bytes": 10**10,
}
# The demo is tuned now and then; the sweeps that are pretended here are not.
SHAPE = ["model.layers=4", "model.hidden=128", "model.ffn=512", "model.heads=4", "model.seq=256"]
SETTINGS = [*SHAPE, "step.batch=16", "step.chunks=2", "step.window=2"]
BASE = resolve(preset="demo", overrides=SETTINGS)
C0_S = {"muon": 0.4, "adamw": 0.1}
C1_S_PER_BYTE = 5e-5
START_S = 2.0
RATE = 1e12
HOPELESS_BATCH = 200


class Killed(BaseException):
    """The sweep's own death, as nothing in it may catch."""


@dataclass
class Machine:
    """Measures by the cost model c0 + c1 T; `seconds` is its clock, which only measuring moves.

    too_large: bytes a step beyond which nothing fits. scatters: how often a point's samples scatter at first.
    dies_at: the measurement at which the sweep is killed.
    """

    base: Config
    too_large: int = 10**9
    slowdown: float = 1.0
    scatters: dict[Configuration, int] = field(default_factory=dict)
    dies_at: int | None = None
    seconds: float = 0.0
    measured: list[Configuration] = field(default_factory=list)

    def clock(self) -> float:
        return self.seconds

    def step(self, point: Configuration, limit_s: float | None) -> Measurement:
        if self.dies_at is not None and len(self.measured) == self.dies_at:
            raise Killed
        self.measured.append(point)
        if self.is_hopeless(point) or point.bytes_per_step > self.too_large:
            return Measurement(point, status="did not fit", note="killed")
        step_s = C0_S[point.optimizer] + C1_S_PER_BYTE * point.bytes_per_step
        step_s *= self.slowdown ** len(self.measured)
        width = 0.5 if self.scatters.get(point, 0) > 0 else 0.01
        self.scatters[point] = self.scatters.get(point, 0) - 1
        samples_s = tuple(step_s * (1 + width * part) for part in (-1, -0.5, 0, 0.5, 1))
        wall_s = START_S + 8 * step_s
        if limit_s is not None and wall_s > limit_s:
            self.seconds += limit_s
            return Measurement(point, status="too slow", note="stopped")
        self.seconds += wall_s
        update_s = C0_S[point.optimizer] * self.slowdown ** len(self.measured)
        return Measurement(
            point,
            step_s,
            samples_s,
            peak_bytes=10**8,
            compile_s=1.0,
            window_s=step_s - update_s,
            update_s=update_s,
            phases={"windows": step_s - update_s, "update": update_s},
            wall_s=wall_s,
        )

    def is_hopeless(self, point: Configuration) -> bool:
        return point.batch > HOPELESS_BATCH

    def rates(self, point: Configuration) -> Rates:
        config = point.configure(self.base)
        with_muon = replace(config, optimizer=replace(config.optimizer, name="muon"))
        products = [("window", product) for product in window_products(config)]
        products += [("update", product) for product in newton_schulz_products(with_muon, is_on_cpu=True)]
        return Rates(tuple(ProductRate(phase, product, RATE) for phase, product in products), 1e9)


@dataclass
class Lines:
    """Progress kept as a list."""

    lines: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def doing(self, text: str) -> None:
        self.done.append(text)


def request_of(
    budget_s: float | None = None, is_grid: bool = True, lists: Lists | None = None
) -> SweepRequest:
    """A request around `BASE`."""
    lists = lists or Lists()
    return SweepRequest(configure_first(BASE, lists), lists, is_grid, steps=5, budget_s=budget_s)
