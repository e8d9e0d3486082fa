"""What each rule of the cost model's judgement buys and costs, on sweeps of machines whose cost is known.

    python -m tools.simulate_sweeps --sweeps 10

Fits every sweep (tools/simulated_machine.py) by every rule and holds the fits against the truth. A fit is good where no
step time that it predicts, up to twice the largest fitted, is more than 10 % off.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlx_amort.cli.tables import align
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.diagnostics import SUSPECT_ROUNDS, THRESHOLDS, Thresholds
from mlx_amort.cost.time.fitting import fit_rows
from mlx_amort.cost.time.spread import visits_of
from mlx_amort.errors import UserError
from tools.simulated_machine import NOISES, PROBES, SIZES, TRUTHS, Machine, Noise, Rows, draw

GOOD = 0.10


def verdict_of(model: CostModel) -> str:
    return "rejected" if model.is_rejected else "in doubt" if model.is_doubtful else "holds"


def by_worst_point(model: CostModel) -> str:
    """A doubt where any leave-one-out residual is more than 10 %, whatever the others do."""
    verdict = verdict_of(replace(model, is_doubtful=False))
    return "in doubt" if verdict == "holds" and model.leave_one_out_error > 0.10 else verdict


def by_residuals(model: CostModel) -> str:
    """A rejection where the residuals, instead of the leave-one-out ones, are 10 % (root mean square)."""
    errors = [point.relative_error for point in model.points]
    return (
        "rejected" if math.sqrt(statistics.fmean(error**2 for error in errors)) > 0.10 else verdict_of(model)
    )


def by_drift(model: CostModel) -> str:
    """A rejection where the machine changed by more than 20 %."""
    return "rejected" if (model.drift or 0.0) > 0.20 else verdict_of(model)


def without_updates(rows: Rows) -> Rows:
    return [replace(row, update_s=None) for row in rows]


def median_visits(rows: Rows) -> Rows:
    """The median visit of each configuration alone."""
    visits = [sorted(each, key=lambda row: row.step_s or 0.0) for each in visits_of(rows)]
    return [each[len(each) // 2] for each in visits]


@dataclass(frozen=True)
class Rule:
    """A change of the judgement: thresholds, rows as they reach the fit, rounds of visiting suspects again, verdict."""

    name: str
    thresholds: Thresholds = THRESHOLDS
    change: Callable[[Rows], Rows] = list
    rounds: int = SUSPECT_ROUNDS
    verdict: Callable[[CostModel], str] = verdict_of


RULES = (
    Rule("as it is"),
    Rule("suspects not visited again", rounds=0),
    Rule("fastest visit, outlier or not", replace(THRESHOLDS, lone_visit_gap=math.inf)),
    Rule("median visit", change=median_visits),
    Rule("updates alone not used", change=without_updates),
    Rule("updates weigh as steps do", replace(THRESHOLDS, update_agreement=0.0)),
    Rule("no third cost", replace(THRESHOLDS, term_chance=0.0), change=without_updates),
    Rule("no further term rejects", replace(THRESHOLDS, term_error_share=0.0)),
    Rule("doubt by the worst point", replace(THRESHOLDS, doubtful_error=math.inf), verdict=by_worst_point),
    Rule("rejected by residuals", replace(THRESHOLDS, rejected_error=math.inf), verdict=by_residuals),
    Rule("rejected by drift", verdict=by_drift),
    Rule(
        "held out not judged",
        replace(THRESHOLDS, doubtful_holdout_error=math.inf, rejected_holdout_error=math.inf),
    ),
)


@dataclass(frozen=True)
class Score:
    """What became of one sweep; errors of the step times predicted, empty where the fit was refused.

    covers_c0, covers_c1: whether the intervals hold the truth, None where the truth is not a line.
    """

    errors: tuple[float, ...]
    verdict: str
    covers_c0: bool | None = None
    covers_c1: bool | None = None

    @property
    def is_good(self) -> bool:
        return bool(self.errors) and max(self.errors) <= GOOD


def judge(rule: Rule, rows: Rows, held_out: Rows, machine: Machine) -> Score:
    """Fit a sweep by a rule, as often as it visits suspects again, and hold the model against the truth."""
    truth = machine.truth
    try:
        model = fit_rows(rule.change(rows), held_out, rule.thresholds)
        for _ in range(rule.rounds):
            rows = rows + [machine.visit(each) for each in model.suspects]
            model = fit_rows(rule.change(rows), held_out, rule.thresholds)
    except UserError:
        return Score((), "refused")
    sizes = [point.measurement.configuration.bytes_per_step for point in model.points]
    probes = [
        each
        for each in PROBES
        if each.optimizer in model.c0_s and min(sizes) <= each.bytes_per_step <= 2 * max(sizes)
    ]
    low_s, high_s = model.c0_interval_s["muon"]
    least, most = model.c1_interval_s_per_byte
    return Score(
        tuple(abs(model.predict_s(each) / truth.step_s(each) - 1) for each in probes),
        rule.verdict(model),
        low_s <= truth.c0_s[0] <= high_s if truth.is_line else None,
        least <= truth.c1_s <= most if truth.is_line else None,
    )


HEADING = (
    "rule|noise|median error|90 %|good|rejected if good|doubt if good|rejected if bad|holds if bad|c0|c1"
)


def line_of(rule: Rule, noise: Noise, scores: Sequence[Score]) -> list[str]:
    """One line of the table."""
    fitted = [score for score in scores if score.errors]
    errors = [error for score in fitted for error in score.errors]
    good, bad = ([score for score in fitted if score.is_good == wanted] for wanted in (True, False))
    cells = [statistics.median(errors), float(np.quantile(errors, 0.9))]
    shares = [len(good) / len(fitted)]
    for scored, verdict in ((good, "rejected"), (good, "in doubt"), (bad, "rejected"), (bad, "holds")):
        shares.append(sum(score.verdict == verdict for score in scored) / max(1, len(scored)))
    for covers in zip(*((score.covers_c0, score.covers_c1) for score in fitted), strict=True):
        shares.append(statistics.fmean(cover for cover in covers if cover is not None))
    return [rule.name, noise.name, *(f"{cell:.1%}" for cell in cells), *(f"{share:.0%}" for share in shares)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=10, help="sweeps of each truth, noise and size (10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", action="append", choices=[noise.name for noise in NOISES])
    parser.add_argument("--rule", action="append", choices=[rule.name for rule in RULES])
    asked = parser.parse_args(arguments)
    lines = []
    for noise in (noise for noise in NOISES if asked.noise is None or noise.name in asked.noise):
        cells = list(itertools.product(TRUTHS, SIZES, range(asked.sweeps)))
        for rule in (rule for rule in RULES if asked.rule is None or rule.name in asked.rule):
            scores = []
            for truth, size, index in cells:
                # Every rule sees the same sweeps.
                name = zlib.crc32(f"{truth.name} {noise.name} {size.count}".encode())
                random = np.random.default_rng([asked.seed, name, index])
                scores.append(judge(rule, *draw(truth, noise, size, random)))
            lines.append(line_of(rule, noise, scores))
    print(align(HEADING.split("|"), lines, text_columns=(0, 1)))


if __name__ == "__main__":
    main()
