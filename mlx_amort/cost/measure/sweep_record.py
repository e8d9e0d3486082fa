"""The profile of a sweep while it is being filled: measures into it, counts its time, saves it each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mlx_amort.amounts import format_duration
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.request import SweepRequest
from mlx_amort.cost.measure.roofline import Rates
from mlx_amort.cost.measure.time_budget import START_S, WARM_UP_STEPS, row_seconds
from mlx_amort.cost.profile import Cut, Profile
from mlx_amort.cost.profile_file import write_profile
from mlx_amort.cost.sentences import describe_measurement
from mlx_amort.cost.time.spread import measure_settled

# A small step still pays its c0: how a step's time is scaled from the anchor's before there is a cost model.
_FIXED_SHARE = 0.3


class Measurer(Protocol):
    """Measures in processes of their own (cost/measure/worker_process.py), or pretends to, in tests."""

    def step(self, configuration: Configuration, limit_s: float | None) -> Measurement: ...

    def is_hopeless(self, configuration: Configuration) -> bool: ...

    def rates(self, configuration: Configuration) -> Rates: ...


class SweepProgress(Protocol):
    """Tells the user what has happened (`line`) and what is being done (`doing`)."""

    def line(self, text: str) -> None: ...

    def doing(self, text: str) -> None: ...


class SweepRecord:
    """A profile and its file, what fills it, and the time budget that filling it uses up."""

    def __init__(
        self,
        profile: Profile,
        path: Path,
        request: SweepRequest,
        measurer: Measurer,
        progress: SweepProgress,
        clock: Callable[[], float],
    ) -> None:
        self.profile = profile
        self.path = path
        self.request = request
        self.measurer = measurer
        self.progress = progress
        self._clock = clock
        self._seen_at = clock()

    @property
    def anchor(self) -> Configuration:
        """What is measured again and again, and every estimate is scaled from."""
        assert self.profile.anchor is not None
        return self.profile.anchor

    def smaller_that_did_not_fit(self, configuration: Configuration) -> Configuration | None:
        """A configuration with fewer rows and no longer windows, else the same, that did not fit."""
        for measurement in self.profile.measurements:
            other = measurement.configuration
            like = replace(other, batch=configuration.batch, chunks=configuration.chunks)
            if measurement.status != "did not fit" or like != configuration:
                continue
            if other.batch < configuration.batch and _window(other) <= _window(configuration):
                return other
        return None

    def measure(self, configuration: Configuration, is_anchor: bool = False, count: str = "") -> Measurement:
        """Measure in what is left of the budget, and keep what comes of it."""
        label = configuration.label
        self.progress.doing(f"{count}measuring {label}")
        found = measure_settled(lambda: self.measurer.step(configuration, self._limit_s()), self._tell_spread)
        measurement = replace(found, is_anchor=is_anchor)
        self.profile.measurements.append(measurement)
        self.save()
        name = f"{label} (anchor)" if is_anchor else label
        self.progress.line(f"{count}{name}: {describe_measurement(measurement)}{self._time_left()}")
        return measurement

    def measure_apart(self, configuration: Configuration) -> Measurement:
        """Measure whatever is left of the budget; the caller keeps what comes of it."""
        self.progress.doing(f"measuring {configuration.label}")
        return measure_settled(lambda: self.measurer.step(configuration, None), self._tell_spread)

    def note_cut(self, cut: Cut) -> None:
        """Keep and report what is left out."""
        assert self.profile.plan is not None
        self.profile.plan.cuts.append(cut)
        self.progress.line(f"left out {cut.configuration.label}: {cut.reason}")
        self.save()

    def seconds_of(self, configuration: Configuration, anchor: Configuration | None = None) -> float:
        """What measuring will take, scaled from the anchor's fastest visit; 0 for what is not tried."""
        if self.measurer.is_hopeless(configuration):
            return 0.0
        anchor = anchor or self.anchor
        step_s, visit = min(
            (
                (visit.step_s, visit)
                for visit in self.profile.measurements
                if visit.configuration == anchor and visit.step_s is not None
            ),
            key=lambda timed: timed[0],
        )
        spent_s = (WARM_UP_STEPS + len(visit.samples_s)) * step_s
        wall_s = START_S + spent_s if visit.wall_s is None else visit.wall_s - (visit.compile_s or 0.0)
        share = _FIXED_SHARE + (1 - _FIXED_SHARE) * configuration.bytes_per_step / anchor.bytes_per_step
        return row_seconds(share * step_s, self.request.steps, max(1.0, wall_s - spent_s))

    def left_s(self) -> float | None:
        """What is left of the time budget, over all sessions; None without one.

        Compiling does not count: some machines compile for longer than they measure.
        """
        elapsed_s, budget_s = self._count_time(), self.request.budget_s
        return None if budget_s is None else budget_s - elapsed_s + sum(self._compile_times_s())

    def _limit_s(self) -> float | None:
        """When a measurement is stopped: what is left, and the longest compilation so far, or as much as the budget."""
        left_s, budget_s = self.left_s(), self.request.budget_s
        if left_s is None or budget_s is None:
            return None
        return max(0.0, left_s) + max(self._compile_times_s(), default=budget_s)

    def _compile_times_s(self) -> list[float]:
        return [each.compile_s for each in self.profile.measurements if each.compile_s is not None]

    def save(self) -> None:
        """Write the profile to disk."""
        self._count_time()
        write_profile(self.profile, self.path)

    def _time_left(self) -> str:
        plan = self.profile.plan
        if plan is None:
            return ""
        done = len(self.profile.measurements) - plan.measured_before
        left_s = sum(self.seconds_of(visit.configuration) for visit in plan.visits[done:])
        return f"; about {format_duration(left_s)} to go" if left_s else ""

    def _tell_spread(self, spread: float) -> None:
        self.progress.line(f"samples spread over {spread:.0%} of their median; measuring once more")

    def _count_time(self) -> float:
        now = self._clock()
        elapsed_s = (self.profile.elapsed_s or 0.0) + now - self._seen_at
        self.profile.elapsed_s, self._seen_at = elapsed_s, now
        return elapsed_s


def _window(configuration: Configuration) -> int:
    return configuration.chunks_per_window or configuration.chunks
