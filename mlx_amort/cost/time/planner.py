"""The configuration to run: the fastest that still makes enough updates, judged by time to quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlx_amort.cost.profile_file import Row
from mlx_amort.cost.time.candidates import (
    PUBLISHED_TOKEN_ADVANTAGE,
    Candidate,
    Request,
    best_bytes_per_step,
    measured_candidates,
    merge_repeats,
    predicted_candidates,
)
from mlx_amort.cost.time.cost_model import Fit
from mlx_amort.errors import UserError, did_you_mean

_MOST_SUGGESTIONS = 3
# Nothing near it was ever published; beyond it the figure is a slip of the pen.
LARGEST_TOKEN_ADVANTAGE = 100.0
# Bytes a step: beyond any batch, and far from where its products overflow.
LARGEST_NOISE_SCALE = 1e18


@dataclass(frozen=True)
class Plan:
    """A choice among the measured configurations and the reasons for it.

    faster: higher rate than the choice, with why each is not chosen. worth_measuring: predicted ones that
    would beat the choice by more than the fit is wrong. noise: T* per optimizer (None where the law does not
    tell it) and the configurations around it. time_to_quality: `muon_to_adamw`, Muon's time over AdamW's to
    equal quality, and what it is made of; None where one of the two is not known.
    """

    request: Request
    choice: Candidate
    next_best: Candidate | None
    faster: tuple[tuple[Candidate, str], ...]
    worth_measuring: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    time_to_quality: dict[str, Any] | None
    noise: dict[str, Any] | None
    warnings: tuple[str, ...]

    def to_record(self) -> dict[str, Any]:
        """The plan as `mlx-amort plan --json` prints it."""
        return {
            "request": asdict(self.request),
            "choice": asdict(self.choice),
            "next_best": None if self.next_best is None else asdict(self.next_best),
            "faster": [{**asdict(candidate), "why_not": why} for candidate, why in self.faster],
            "worth_measuring": [asdict(candidate) for candidate in self.worth_measuring],
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "time_to_quality": self.time_to_quality,
            "noise": self.noise,
            "warnings": list(self.warnings),
        }


def _time_to_quality(
    measured: Sequence[Candidate], choice: Candidate, fit: Fit, advantage: float
) -> dict[str, Any] | None:
    """Muon's time over AdamW's to equal quality, both with the choice's configuration."""
    if not {"muon", "adamw"} <= set(fit.c0_s):
        return None

    def step_of(optimizer: str) -> tuple[float | None, str]:
        for candidate in measured:
            if candidate.optimizer == optimizer and _shape(candidate) == _shape(choice):
                return candidate.step_s, "measured"
        # A law that is rejected predicts nothing: only a measured pair is compared.
        return None if fit.is_rejected else fit.predict_s(replace(choice, optimizer=optimizer)), "predicted"

    (muon_s, muon_source), (adamw_s, adamw_source) = step_of("muon"), step_of("adamw")
    if muon_s is None or adamw_s is None:
        return None
    return {
        "muon_step_s": muon_s,
        "muon_source": muon_source,
        "adamw_step_s": adamw_s,
        "adamw_source": adamw_source,
        "token_advantage": advantage,
        "muon_to_adamw": muon_s / adamw_s / advantage,
        "is_published_advantage": advantage == PUBLISHED_TOKEN_ADVANTAGE,
    }


def _shape(candidate: Candidate) -> tuple[Any, ...]:
    """All that makes a configuration but its optimizer."""
    c = candidate
    return (c.batch, c.chunks, c.window, c.accum, c.seq, c.activation_checkpointing, c.precision)


def _noise(
    candidates: Sequence[Candidate], fit: Fit, request: Request, choice: Candidate
) -> dict[str, Any] | None:
    if request.noise_scale_bytes is None:
        return None
    best = {
        name: None
        if fit.is_rejected
        else best_bytes_per_step(request.noise_scale_bytes, c0, fit.c1_s_per_byte)
        for name, c0 in fit.c0_s.items()
    }
    goal = best.get(choice.optimizer)
    around = []
    if goal is not None:
        own = [c for c in candidates if c.optimizer == choice.optimizer and c.seq == choice.seq]
        below = [c for c in own if c.bytes_per_step <= goal]
        above = [c for c in own if c.bytes_per_step > goal]
        around = (
            sorted(below, key=lambda c: -c.bytes_per_step)[:2]
            + sorted(above, key=lambda c: c.bytes_per_step)[:2]
        )
        around.sort(key=lambda c: (c.bytes_per_step, c.batch))
    return {
        "noise_scale_bytes": request.noise_scale_bytes,
        "best_bytes_per_step": best,
        "around": [asdict(candidate) for candidate in around],
    }


def _check(request: Request, fit: Fit) -> None:
    if request.prefer is not None and request.prefer not in fit.c0_s:
        raise UserError(
            f"--prefer {request.prefer}", "was not measured", did_you_mean(request.prefer, fit.c0_s)
        )
    if request.noise_scale_bytes is not None and request.noise_scale_bytes > LARGEST_NOISE_SCALE:
        raise UserError(
            f"--noise-scale {request.noise_scale_bytes:g}",
            f"is over {LARGEST_NOISE_SCALE:g} bytes a step",
            "give that of your run: some 1e5 to 1e8 bytes",
        )
    if not 0 < request.token_advantage <= LARGEST_TOKEN_ADVANTAGE:
        raise UserError(
            f"--token-advantage {request.token_advantage:g}",
            f"is not above 0 and at most {LARGEST_TOKEN_ADVANTAGE:g}",
            "1 means no advantage",
        )


def _why_not(candidate: Candidate, choice: Candidate) -> str:
    if candidate.refused and candidate.optimizer == choice.optimizer:
        return "; ".join(candidate.refused)
    slower = candidate.quality_hours / choice.quality_hours
    if slower <= 1.0:
        return "; ".join(candidate.refused)
    return "; ".join([*candidate.refused, f"takes {slower:.2f} times as long to the same quality"])


def plan_run(rows: Sequence[Row], fit: Fit, request: Request) -> Plan:
    """Choose the configuration with the least time to quality among those that satisfy the request.

    Time to quality is D / R, times the token advantage for AdamW; with a noise scale it is proportional to
    (1 + T_crit / T) · step_s.
    Only a measured configuration is chosen while one satisfies the request: a prediction within the fit's own
    error is no reason to leave it, and one that beats it by more is named as worth measuring.
    Source: docs/cost_model.md, Choosing; McCandlish et al. 2018, section 2.3.
    Raises: UserError when nothing satisfies the request.
    """
    _check(request, fit)
    merged = merge_repeats(rows)
    measured, predicted = (
        measured_candidates(merged, fit, request),
        predicted_candidates(merged, fit, request),
    )
    warnings = []
    if fit.is_rejected:
        warnings.append(f"{fit.verdict} This plan rests on measured configurations alone.")
    elif fit.is_doubtful:
        warnings.append(fit.verdict)
    if request.min_updates is None and request.noise_scale_bytes is None:
        warnings.append(
            "no --min-updates and no --noise-scale: the fastest is chosen as if fewer updates cost no quality"
        )

    if fit.disturbance > 1.005:
        slower = f"{fit.disturbance - 1:.1%}"
        warnings.append(
            f"times include the {slower} by which other programs slowed the machine while it was profiled"
        )

    def score(candidate: Candidate) -> float:
        return candidate.quality_hours

    possible = sorted((c for c in measured if not c.refused), key=score)
    if not possible:
        possible = sorted((c for c in predicted if not c.refused), key=score)
        if not possible:
            raise _nothing_left(measured, request)
        warnings.append(
            "no measured configuration satisfies the request: the choice is predicted, measure it first"
        )
    choice, others = possible[0], possible[1:]
    margin = 1.0 - fit.leave_one_out_error
    promising = [c for c in predicted if not c.refused and c != choice and score(c) < margin * score(choice)]
    candidates = sorted([*measured, *predicted], key=lambda c: (c.bytes_per_step, c.batch, c.optimizer))
    faster = [c for c in measured if c.bytes_per_s > choice.bytes_per_s]
    return Plan(
        request=request,
        choice=choice,
        next_best=others[0] if others else None,
        faster=tuple((c, _why_not(c, choice)) for c in sorted(faster, key=lambda c: -c.bytes_per_s)),
        worth_measuring=tuple(sorted(promising, key=score)[:_MOST_SUGGESTIONS]),
        candidates=tuple(candidates),
        time_to_quality=_time_to_quality(measured, choice, fit, request.token_advantage),
        noise=_noise(candidates, fit, request, choice),
        warnings=tuple(warnings),
    )


def _nothing_left(measured: Sequence[Candidate], request: Request) -> UserError:
    nearest = min(measured, key=lambda c: (len(c.refused), c.bytes_per_step))
    asked = {"ask for fewer updates": request.min_updates, "allow more memory": request.memory_bytes}
    todo = [what for what, amount in asked.items() if amount is not None]
    todo.append("measure smaller configurations")
    why = f"nearest is {nearest.label}: {'; '.join(nearest.refused)}"
    return UserError(
        "plan",
        f"nothing measured or predicted satisfies the request; {why}",
        " or ".join(todo),
    )
