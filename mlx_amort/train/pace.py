"""What a run's steps will take, and whether they do; no mlx.

A forecast comes from a profile (cost/time/forecast.py) before the run, or from the run's first steps.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from mlx_amort.amounts import format_duration

# Beyond this the machine is not as it was when it was profiled: another program on it, or heat.
LARGEST_DEVIATION = 0.05
# A median that wavers about the limit is reported once: it has returned when it is well within.
RETURNED_DEVIATION = LARGEST_DEVIATION / 2
# The steps whose median is watched: the last 16, or more where these take less than 20 s, for a busy second is no
# change of the machine; nothing is said of fewer than 8.
WATCHED_STEPS = 16
LEAST_WATCHED_STEPS = 8
WATCHED_S = 20.0
# A median of n noisy steps is off by about this times their median absolute deviation over sqrt(n), two times in three.
_ERROR_OF_MEDIAN = 1.86
_CLEARLY = 3.0
# So often a session reports that its steps left the forecast; the summary compares the whole.
MOST_REPORTS = 4
# Steps that forecast the others: at least so many and for so long, as a few short ones are mostly noise.
FIRST_STEPS = 5
FIRST_STEPS_S = 5.0
MOST_FIRST_STEPS = 100
# A deviation is reported again once it has grown by this factor.
_TOLD_AGAIN = 2.0

Change = Literal["forecast", "left", "returned"]


@dataclass(frozen=True)
class Forecast:
    """The step time of one configuration.

    Units: step_s, c0_s in seconds, c1_s_per_byte in seconds per byte. `source`: the profile, or "its first N
    steps", in which case is_from_steps and the costs and the ceiling are None. is_extrapolated: the bytes per
    step lie outside those that were measured. uncertainty: the share by which a cost model in doubt may be off.
    disturbance: the factor in step_s that is other programs' (cost/time/spread.py); a median of steps is held
    against the step without it, the run's mean against step_s. warning: what else to know of it.
    """

    step_s: float
    bytes_per_step: int
    source: str
    ceiling_bytes_per_s: float | None = None
    c0_s: float | None = None
    c1_s_per_byte: float | None = None
    is_extrapolated: bool = False
    is_from_steps: bool = False
    uncertainty: float | None = None
    disturbance: float = 1.0
    warning: str = ""

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_per_step / self.step_s

    @property
    def ceiling_fraction(self) -> float | None:
        """The rate's share of 1 / c1."""
        if self.ceiling_bytes_per_s is None:
            return None
        return self.bytes_per_step / self.undisturbed_s / self.ceiling_bytes_per_s

    @property
    def undisturbed_s(self) -> float:
        """What most steps take, while the machine is left alone."""
        return self.step_s / self.disturbance

    def deviation(self, median_step_s: float) -> float:
        """Median of measured steps / undisturbed_s - 1."""
        return median_step_s / self.undisturbed_s - 1

    def describe(self, unit: str = "byte") -> str:
        """The step time, the rate and its share of the ceiling, and where they are from."""
        ceiling = ""
        if self.ceiling_fraction is not None:
            ceiling = f", {self.ceiling_fraction:.0%} of the ceiling of {self.ceiling_bytes_per_s:,.0f}"
        beyond = ", beyond the sizes that it measured" if self.is_extrapolated else ""
        doubt = "" if self.uncertainty is None else f", give or take {self.uncertainty:.0%}"
        beyond += "" if self.uncertainty is None else ", its cost model is in doubt"
        rate = f"{self.bytes_per_s:,.0f} {unit}s/s{ceiling}"
        return f"{self.step_s:.4g} s per step{doubt}, {rate} (from {self.source}{beyond})"

    def describe_end(self, steps: int, validation_bytes: int, now: datetime) -> str:
        """When so many steps, and validations of so many bytes in all, will have been taken.

        A validation goes forward only, which is a third of the work of a step's bytes, and updates nothing.
        """
        byte_s = 1 / self.bytes_per_s if self.c1_s_per_byte is None else self.c1_s_per_byte * self.disturbance
        left_s = steps * self.step_s + validation_bytes * byte_s / 3
        end = now + timedelta(seconds=left_s)
        day = "" if end.date() == now.date() else f"{end:%a} {end.day} {end:%b} "
        validations = " and their validations" if validation_bytes else ""
        return f"about {day}{end:%H:%M}: {steps:,} steps{validations} in {format_duration(left_s)}"

    def warn(self, median_step_s: float) -> str:
        """What to say when the steps of late are not those that were predicted."""
        deviation = self.deviation(median_step_s)
        if deviation > 0:
            why = "another program on the machine, or heat"
        elif self.is_from_steps:
            why = "the machine was busier then"
        else:
            why = "the machine was busier when it was profiled; profile again"
        return (
            f"the last steps took {median_step_s:.4g} s, {abs(deviation):.0%} "
            f"{'more' if deviation > 0 else 'less'} than the {self.undisturbed_s:.4g} s "
            f"{f'of {self.source}' if self.is_from_steps else 'predicted'}: {why}"
        )


def forecast_from_steps(samples_s: Sequence[float], bytes_per_step: int) -> Forecast:
    """A forecast without a profile: the median of a run's first steps that compiled nothing."""
    source = f"its first {len(samples_s)} steps"
    return Forecast(statistics.median(samples_s), bytes_per_step, source, is_from_steps=True)


class Pace:
    """The steps of a session that count beside what was forecast of them: those that compile or nap do not.

    why_none: why there is no forecast from a profile. The first steps that count make one then.
    """

    def __init__(self, forecast: Forecast | None = None, why_none: str = "") -> None:
        self.forecast = forecast
        self.why_none = why_none
        self._told_deviation: float | None = None
        self._steps_s: list[float] = []
        self._recent_s: deque[float] = deque()
        self._reports = 0

    @property
    def predicted_s(self) -> float | None:
        """What a step is expected to take; None as long as nothing is known of it."""
        return None if self.forecast is None else self.forecast.step_s

    @property
    def mean_s(self) -> float | None:
        """Mean of the steps that count."""
        return statistics.fmean(self._steps_s) if self._steps_s else None

    @property
    def median_s(self) -> float | None:
        """Median of the steps that count."""
        return statistics.median(self._steps_s) if self._steps_s else None

    @property
    def recent_s(self) -> float:
        """Median of the last steps that count."""
        return statistics.median(self._recent_s)

    def take(self, step_s: float, bytes_per_step: int) -> Change | None:
        """Record a timed step; return "forecast" once there is one, "left" when the median deviates, "returned"
        when it no longer does.

        The median of the last steps (16, or as many as take 20 s) leaves when it is off by more than 5 % and by
        more than their own noise explains; again when it is twice as far off as when that was last reported, or to the
        other side; four times a session at most.
        """
        self._steps_s.append(step_s)
        self._watch(step_s)
        if self.forecast is None:
            count = len(self._steps_s)
            is_long = sum(self._steps_s) >= FIRST_STEPS_S or count >= MOST_FIRST_STEPS
            if count < FIRST_STEPS or not is_long:
                return None
            self.forecast = forecast_from_steps(self._steps_s, bytes_per_step)
            return "forecast"
        watched = self._watched_steps
        if len(self._recent_s) < (LEAST_WATCHED_STEPS if watched == WATCHED_STEPS else watched):
            return None
        deviation, told = self.forecast.deviation(self.recent_s), self._told_deviation
        if told is not None and abs(deviation) <= RETURNED_DEVIATION:
            self._told_deviation = None
            return "returned"
        has_turned = told is not None and told * deviation < 0
        least = LARGEST_DEVIATION if told is None or has_turned else _TOLD_AGAIN * abs(told)
        if abs(deviation) > max(least, _CLEARLY * self._error_of_median()) and self._reports < MOST_REPORTS:
            self._told_deviation = deviation
            self._reports += 1
            return "left"
        return None

    def _watch(self, step_s: float) -> None:
        """Keep the last steps, no more than are needed."""
        self._recent_s.append(step_s)
        while len(self._recent_s) > self._watched_steps:
            self._recent_s.popleft()

    @property
    def _watched_steps(self) -> int:
        """By the predicted time, for one step may stand still for as long as all the others take."""
        if self.forecast is None:
            return MOST_FIRST_STEPS
        return max(WATCHED_STEPS, round(WATCHED_S / self.forecast.undisturbed_s))

    def _error_of_median(self) -> float:
        """Standard error of the watched median, as a share of it. Source: asymptotic, for normal noise."""
        median_s = self.recent_s
        spread_s = statistics.median(abs(step_s - median_s) for step_s in self._recent_s)
        return _ERROR_OF_MEDIAN * spread_s / median_s / math.sqrt(len(self._recent_s))
