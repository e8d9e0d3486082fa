"""Sweeps of machines whose cost is known, drawn as `mlx-amort profile --grid` makes them."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np

from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.grid import Lists, default_grid, product_grid
from mlx_amort.cost.measure.time_budget import mixed_order, repeats_within, row_seconds
from mlx_amort.cost.time.spread import visits_of

STEPS, START_S, SAMPLES = 5, 3.0, 9
DEMO = resolve(preset="demo")
BASE = Configuration.of(DEMO)
Rows = list[Measurement]


@dataclass(frozen=True)
class Truth:
    """What a step costs: c0 + c1 T + window_s · A⌈K/W⌉ + chunk_s · A K + square_s · T² + row_s · B.

    update_share: an update timed alone over c0; a step pays dispatch too, and a lone update finds cold caches.
    """

    name: str
    c0_s: tuple[float, float] = (0.020, 0.0076)
    c1_s: float = 78e-6
    window_s: float = 0.0
    chunk_s: float = 0.0
    square_s: float = 0.0
    row_s: float = 0.0
    update_share: float = 1.0

    @property
    def is_line(self) -> bool:
        return not (self.square_s or self.row_s)

    def update_s(self, optimizer: str) -> float:
        return self.c0_s[("muon", "adamw").index(optimizer)]

    def step_s(self, each: Configuration) -> float:
        size = each.bytes_per_step
        line_s = self.update_s(each.optimizer) + self.c1_s * size + self.square_s * size**2
        paid_s = self.window_s * each.windows_per_step + self.chunk_s * each.chunks_per_step
        return line_s + paid_s + self.row_s * each.batch


# The costs of the demo on two cores of a server, and what else they may be; the last two are not a line.
TRUTHS = (
    Truth("affine"),
    Truth("affine, update 0.6 of c0", update_share=0.6),
    Truth("affine, update 1.3 of c0", update_share=1.3),
    Truth("affine, large c0", (0.30, 0.10)),
    Truth("window", window_s=0.0145),
    Truth("window, update 0.6 of c0", window_s=0.0145, update_share=0.6),
    Truth("chunk", chunk_s=0.010),
    Truth("curved", square_s=6e-9),
    Truth("B alone", row_s=0.02),
)


@dataclass(frozen=True)
class Noise:
    """What disturbs a visit, as shares of its time: sigma always; bursts of other programs; throttling; one outlier.

    Bursts come gap_s apart, last burst_s and are `height` high, each an exponential variable with that mean.
    """

    name: str
    sigma: float = 0.01
    gap_s: float = math.inf
    burst_s: float = 15.0
    height: float = 0.25
    throttle: float = 0.0
    outlier: float = 1.0


NOISES = (
    Noise("quiet"),
    Noise("busy", sigma=0.02, gap_s=30.0),
    Noise("busier", sigma=0.02, gap_s=20.0, burst_s=30.0, height=0.4),
    Noise("throttling", throttle=0.15),
    Noise("one slower", outlier=1.4),
    Noise("one faster", outlier=0.71),
)


@dataclass(frozen=True)
class Size:
    """A sweep of the first `count` configurations of the demo's grid; repeats may take repeats_s."""

    count: int
    repeats_s: float | None = None

    @property
    def configurations(self) -> list[Configuration]:
        grid = default_grid(BASE, Lists(), DEMO.model.patch_stride)
        if self.count <= len(grid):
            return grid[: self.count]
        return product_grid(BASE, Lists((1, 2, 4, 8, 16), (1, 2, 4, 8), optimizers=("muon", "adamw")))


SIZES = (Size(5), Size(11), Size(16, 160.0), Size(40))
PROBES = [
    replace(BASE, batch=batch, chunks=chunks, optimizer=optimizer)
    for batch, chunks, optimizer in itertools.product((1, 3, 6, 12), (1, 3, 6), ("muon", "adamw"))
]


@dataclass
class Machine:
    """A machine of known costs under a noise; every visit moves its clock. bursts: begin, end, height."""

    truth: Truth
    noise: Noise
    random: np.random.Generator
    sweep_s: float
    now_s: float = 0.0
    bursts: list[tuple[float, float, float]] = field(default_factory=list)

    def visit(self, each: Configuration, outlier: float = 1.0) -> Measurement:
        """What measuring a configuration gives now."""
        noise, random, step_s = self.noise, self.random, self.truth.step_s(each)
        start_s, self.now_s = self.now_s + START_S, self.now_s + row_seconds(step_s, STEPS, START_S)
        while noise.gap_s < math.inf and (not self.bursts or self.bursts[-1][1] < self.now_s):
            begin_s = (self.bursts[-1][1] if self.bursts else 0.0) + random.exponential(noise.gap_s)
            end_s = begin_s + random.exponential(noise.burst_s)
            self.bursts.append((begin_s, end_s, random.exponential(noise.height)))
        times_s = np.linspace(start_s, self.now_s, SAMPLES)
        factors = outlier * (1 + noise.throttle * np.minimum(times_s / self.sweep_s, 1.0))
        factors *= (1 + noise.sigma * random.normal()) * (1 + noise.sigma * random.normal(size=SAMPLES))
        for begin_s, end_s, height in self.bursts:
            factors[(times_s >= begin_s) & (times_s < end_s)] *= 1 + height
        samples_s = tuple(float(step_s * factor) for factor in factors)
        update_s = self.truth.update_s(each.optimizer) * self.truth.update_share * float(np.median(factors))
        update_s *= 1 + noise.sigma * random.normal()
        return Measurement(each, statistics.median(samples_s), samples_s, update_s=update_s)


def draw(truth: Truth, noise: Noise, size: Size, random: np.random.Generator) -> tuple[Rows, Rows, Machine]:
    """The measurements of one sweep, two held-out ones (the fastest of three visits each), and the machine."""
    wanted = size.configurations
    cost_s = {each: row_seconds(truth.step_s(each), STEPS, START_S) for each in wanted}
    again = repeats_within(wanted, cost_s.__getitem__, size.repeats_s)
    visits = [wanted[0], *(visit.configuration for visit in mixed_order(wanted, wanted[0], again=again))]
    machine = Machine(truth, noise, random, sum(cost_s[each] for each in visits))
    outlier = int(random.integers(len(visits)))
    rows = [
        machine.visit(each, noise.outlier if index == outlier else 1.0) for index, each in enumerate(visits)
    ]
    unseen = [PROBES[index] for index in random.permutation(len(PROBES))[:2]]
    apart = [machine.visit(each) for _ in range(3) for each in unseen]
    return rows, [min(each, key=lambda row: row.step_s or 0.0) for each in visits_of(apart)], machine
