"""The configuration to run: the fastest that still makes enough updates, judged by time to quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.time.candidates import (
    PUBLISHED_TOKEN_ADVANTAGE,
    Candidate,
    PlanRequest,
    best_bytes_per_step,
    measured_candidates,
    merge_repeats,
    predicted_candidates,
)
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.errors import UserError, did_you_mean

_MOST_SUGGESTIONS = 3
# Nothing near it was ever published; beyond it the figure is a slip of the pen.
LARGEST_TOKEN_ADVANTAGE = 100.0
# Bytes per step: beyond any batch, and far from where its products overflow.
LARGEST_NOISE_SCALE = 1e18


@dataclass(frozen=True)
class TimeToQuality:
    """Muon's and AdamW's step times with the choice's configuration; each source is "measured" or "predicted".

    token_advantage: AdamW's bytes over Muon's for one loss.
    """

    muon_step_s: float
    muon_source: str
    adamw_step_s: float
    adamw_source: str
    token_advantage: float

    @property
    def muon_to_adamw(self) -> float:
        """Muon's time over AdamW's to equal quality."""
        return self.muon_step_s / self.adamw_step_s / self.token_advantage

    @property
    def is_published_advantage(self) -> bool:
        return self.token_advantage == PUBLISHED_TOKEN_ADVANTAGE

    def to_record(self) -> dict[str, Any]:
        """The comparison as JSON."""
        derived = {
            "muon_to_adamw": self.muon_to_adamw,
            "is_published_advantage": self.is_published_advantage,
        }
        return {**asdict(self), **derived}


@dataclass(frozen=True)
class NoiseAdvice:
    """What a noise scale asks for: T* of each optimizer, None where the cost model does not tell it.

    around: the candidates next to the choice's T*, two on either side.
    """

    noise_scale_bytes: float
    best_bytes_per_step: dict[str, float | None]
    around: tuple[Candidate, ...]

    def to_record(self) -> dict[str, Any]:
        """The advice as JSON."""
        return {
            "noise_scale_bytes": self.noise_scale_bytes,
            "best_bytes_per_step": self.best_bytes_per_step,
            "around": [candidate.to_record() for candidate in self.around],
        }


@dataclass(frozen=True)
class Plan:
    """A choice among the measured configurations and the reasons for it.

    faster: higher rate than the choice, with why each is not chosen. worth_measuring: predicted ones that
    would beat the choice by more than the cost model is wrong. time_to_quality is None where one of the two
    optimizers is not known, noise without a noise scale.
    """

    request: PlanRequest
    choice: Candidate
    next_best: Candidate | None
    faster: tuple[tuple[Candidate, str], ...]
    worth_measuring: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    time_to_quality: TimeToQuality | None
    noise: NoiseAdvice | None
    warnings: tuple[str, ...]

    def to_record(self) -> dict[str, Any]:
        """The plan as `mlx-amort plan --json` prints it."""
        times, noise, next_best = self.time_to_quality, self.noise, self.next_best
        return {
            "request": self.request.to_record(),
            "choice": self.choice.to_record(),
            "next_best": None if next_best is None else next_best.to_record(),
            "faster": [{**candidate.to_record(), "why_not": why} for candidate, why in self.faster],
            "worth_measuring": [candidate.to_record() for candidate in self.worth_measuring],
            "candidates": [candidate.to_record() for candidate in self.candidates],
            "time_to_quality": None if times is None else times.to_record(),
            "noise": None if noise is None else noise.to_record(),
            "warnings": list(self.warnings),
        }


def plan_run(rows: Sequence[Measurement], model: CostModel, request: PlanRequest) -> Plan:
    """Choose the configuration with the least time to quality among those that satisfy the request.

    Time to quality is D / R, times the token advantage for AdamW; with a noise scale it is proportional to
    (1 + T_crit / T) · step_s.
    Only a measured configuration is chosen while one satisfies the request: a prediction within the model's own
    error is no reason to leave it, and one that beats it by more is named as worth measuring.
    Source: docs/cost_model.md, Choosing; McCandlish et al. 2018, section 2.3.
    Raises: UserError when nothing satisfies the request.
    """
    _check(request, model)
    merged = merge_repeats(rows)
    measured = measured_candidates(merged, model, request)
    predicted = predicted_candidates(merged, model, request)
    warnings = _warnings(model, request)
    possible = sorted((c for c in measured if not c.refused), key=_quality_hours)
    if not possible:
        possible = sorted((c for c in predicted if not c.refused), key=_quality_hours)
        if not possible:
            raise _nothing_left(measured, request)
        warnings.append(
            "no measured configuration satisfies the request: the choice is predicted, measure it first"
        )
    choice, others = possible[0], possible[1:]
    warnings += _choice_warnings(choice, model)
    limit = (1.0 - model.leave_one_out_error) * choice.quality_hours
    promising = [c for c in predicted if not c.refused and c != choice and c.quality_hours < limit]
    candidates = sorted([*measured, *predicted], key=_size)
    faster = sorted((c for c in measured if c.bytes_per_s > choice.bytes_per_s), key=lambda c: -c.bytes_per_s)
    return Plan(
        request=request,
        choice=choice,
        next_best=others[0] if others else None,
        faster=tuple((c, _why_not(c, choice)) for c in faster),
        worth_measuring=tuple(sorted(promising, key=_quality_hours)[:_MOST_SUGGESTIONS]),
        candidates=tuple(candidates),
        time_to_quality=_time_to_quality(measured, choice, model, request.token_advantage),
        noise=_noise(candidates, model, request, choice),
        warnings=tuple(warnings),
    )


def _quality_hours(candidate: Candidate) -> float:
    return candidate.quality_hours


def _size(candidate: Candidate) -> tuple[int, int, str]:
    each = candidate.configuration
    return each.bytes_per_step, each.batch, each.optimizer


def _check(request: PlanRequest, model: CostModel) -> None:
    if request.prefer is not None and request.prefer not in model.c0_s:
        raise UserError(
            f"--prefer {request.prefer}", "was not measured", did_you_mean(request.prefer, model.c0_s)
        )
    if request.noise_scale_bytes is not None and request.noise_scale_bytes > LARGEST_NOISE_SCALE:
        raise UserError(
            f"--noise-scale {request.noise_scale_bytes:g}",
            f"is over {LARGEST_NOISE_SCALE:g} bytes",
            "give that of your run: some 1e5 to 1e8 bytes",
        )
    if not 0 < request.token_advantage <= LARGEST_TOKEN_ADVANTAGE:
        raise UserError(
            f"--token-advantage {request.token_advantage:g}",
            f"is not above 0 and at most {LARGEST_TOKEN_ADVANTAGE:g}",
            "1 means no advantage",
        )


def _warnings(model: CostModel, request: PlanRequest) -> list[str]:
    warnings = []
    if model.is_rejected:
        warnings.append(f"{model.verdict} This plan rests on measured configurations alone.")
    elif model.is_doubtful:
        warnings.append(model.verdict)
    if request.min_updates is None and request.noise_scale_bytes is None:
        warnings.append(
            "no --min-updates and no --noise-scale: the fastest is chosen as if fewer updates cost no quality"
        )
    if model.disturbance > 1.005:
        slower = f"{model.disturbance - 1:.1%}"
        warnings.append(
            f"times include the {slower} by which other programs slowed the machine while it was profiled"
        )
    return warnings


def _choice_warnings(choice: Candidate, model: CostModel) -> list[str]:
    """That the choice rests on a measurement that does not agree with the others."""
    label = choice.configuration.label
    if choice.source == "measured" and choice.configuration in model.suspects:
        return [f"{label} does not agree with the other measurements: measure it again before a long run"]
    return []


def _time_to_quality(
    measured: Sequence[Candidate], choice: Candidate, model: CostModel, advantage: float
) -> TimeToQuality | None:
    """Both optimizers with the choice's configuration."""
    if not {"muon", "adamw"} <= set(model.c0_s):
        return None

    def step_of(optimizer: str) -> tuple[float | None, str]:
        configuration = replace(choice.configuration, optimizer=optimizer)
        for candidate in measured:
            if candidate.configuration == configuration:
                return candidate.step_s, "measured"
        # Like with like: a model of steps without checkpointing says nothing about one with it.
        return model.predict_s(configuration) if model.predicts(configuration) else None, "predicted"

    (muon_s, muon_source), (adamw_s, adamw_source) = step_of("muon"), step_of("adamw")
    if muon_s is None or adamw_s is None:
        return None
    return TimeToQuality(muon_s, muon_source, adamw_s, adamw_source, advantage)


def _noise(
    candidates: Sequence[Candidate], model: CostModel, request: PlanRequest, choice: Candidate
) -> NoiseAdvice | None:
    scale_bytes = request.noise_scale_bytes
    if scale_bytes is None:
        return None
    has_model = model.predicts(choice.configuration)
    best = {
        name: best_bytes_per_step(scale_bytes, c0_s, model.c1_s_per_byte) if has_model else None
        for name, c0_s in model.c0_s.items()
    }
    goal = best.get(choice.configuration.optimizer)
    around: list[Candidate] = []
    if goal is not None:
        like = (choice.configuration.optimizer, choice.configuration.seq)
        own = [c for c in candidates if (c.configuration.optimizer, c.configuration.seq) == like]
        below = [c for c in own if c.configuration.bytes_per_step <= goal]
        above = [c for c in own if c.configuration.bytes_per_step > goal]
        below.sort(key=lambda c: -c.configuration.bytes_per_step)
        around = sorted([*below[:2], *above[:2]], key=_size)
    return NoiseAdvice(scale_bytes, best, tuple(around))


def _why_not(candidate: Candidate, choice: Candidate) -> str:
    reasons = list(candidate.refused)
    slower = candidate.quality_hours / choice.quality_hours
    is_same = candidate.configuration.optimizer == choice.configuration.optimizer
    if slower > 1.0 and not (reasons and is_same):
        reasons.append(f"takes {slower:.2f} times as long to the same quality")
    return "; ".join(reasons)


def _nothing_left(measured: Sequence[Candidate], request: PlanRequest) -> UserError:
    nearest = min(measured, key=lambda c: (len(c.refused), c.configuration.bytes_per_step))
    asked = {"ask for fewer updates": request.min_updates, "allow more memory": request.memory_bytes}
    todo = [what for what, amount in asked.items() if amount is not None]
    todo.append("measure smaller configurations")
    why = f"nearest is {nearest.configuration.label}: {'; '.join(nearest.refused)}"
    return UserError(
        "plan",
        f"nothing measured or predicted satisfies the request; {why}",
        " or ".join(todo),
    )
