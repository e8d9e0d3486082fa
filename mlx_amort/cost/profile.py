"""A profile: what a sweep was asked for, planned, measured and concluded; its whole state, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_amort.config.conversion import current_name
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.fields import Fields
from mlx_amort.cost.measure.roofline import Rates, Roofline
from mlx_amort.cost.time.cost_model import CostModel

OPTIMIZER_KEYS = ("muon_dtype", "coefficients")
"""What of the optimizer's constants a step's time depends on."""

Fact = str | int | float | bool | None
"""A value of one machine or model, shown as it is and compared by equality alone."""


@dataclass(frozen=True)
class Visit:
    """One measurement of a sweep; the anchor is one configuration again, to see whether the machine has changed."""

    configuration: Configuration
    is_anchor: bool = False

    def to_record(self) -> dict[str, Any]:
        return {**self.configuration.to_record(), "is_anchor": self.is_anchor}


@dataclass(frozen=True)
class Cut:
    """A configuration that a sweep leaves out, and why."""

    configuration: Configuration
    reason: str

    def to_record(self) -> dict[str, Any]:
        return {**self.configuration.to_record(), "reason": self.reason}


@dataclass
class SweepPlan:
    """What a sweep measures, in which order, and what it leaves out.

    measured_before: how many measurements there were when this was planned.
    """

    visits: list[Visit]
    cuts: list[Cut]
    measured_before: int

    def to_record(self) -> dict[str, Any]:
        return {
            "visits": [visit.to_record() for visit in self.visits],
            "cuts": [cut.to_record() for cut in self.cuts],
            "measured_before": self.measured_before,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> SweepPlan:
        cuts = fields.sections("cuts") or fields.sections("cut")
        before = fields.number("measured_before")
        return cls(
            [
                Visit(Configuration.from_fields(each), each.flag("is_anchor"))
                for each in fields.sections("visits")
            ],
            [Cut(Configuration.from_fields(each), each.text("reason")) for each in cuts],
            int(fields.number("rows_before") or 0 if before is None else before),
        )


@dataclass(frozen=True)
class Prediction:
    """A configuration held out of the fit: its predicted time and, once there are any, its visits.

    best: the visit that counts; visits_s: the times of all, None where a visit gave none.
    """

    configuration: Configuration
    predicted_s: float
    best: Measurement | None = None
    visits_s: tuple[float | None, ...] = ()

    @property
    def relative_error(self) -> float | None:
        """predicted / measured - 1, None without a measured time."""
        if self.best is None or self.best.step_s is None:
            return None
        return self.predicted_s / self.best.step_s - 1

    def visited(self, visit: Measurement) -> Prediction:
        """The prediction after one more visit: the fastest of those that are not flagged counts, as in a fit."""
        visits_s = (*self.visits_s, visit.step_s)
        best = self.best
        if best is not None and best.step_s is not None:
            is_flagged, was_flagged = visit.status != "ok", best.status != "ok"
            is_slower = visit.step_s is None or visit.step_s >= best.step_s
            if is_flagged > was_flagged or (is_flagged == was_flagged and is_slower):
                return replace(self, visits_s=visits_s)
        return replace(self, best=visit, visits_s=visits_s)

    def to_record(self) -> dict[str, Any]:
        record = {
            **self.configuration.to_record(),
            "predicted_s": self.predicted_s,
            "measured_s": None if self.best is None else self.best.step_s,
            "relative_error": self.relative_error,
        }
        if self.best is not None:
            record |= {
                "samples_s": list(self.best.samples_s),
                "status": self.best.status,
                "peak_bytes": self.best.peak_bytes,
                "note": self.best.note,
                "visits_s": list(self.visits_s),
            }
        return record

    @classmethod
    def from_fields(cls, fields: Fields) -> Prediction:
        configuration = Configuration.from_fields(fields)
        measured_s = fields.time_s({"measured_s": 1.0}, "measured_s")
        best = None
        if measured_s is not None or fields.has("status"):
            best = Measurement(
                configuration,
                measured_s,
                samples_s=fields.times_s("samples_s"),
                peak_bytes=fields.bytes({"peak_bytes": 1.0}, "peak_bytes"),
                status=fields.name("status") or "ok",
                note=fields.text("note"),
            )
        predicted_s = fields.known_number("predicted_s")
        return cls(configuration, predicted_s, best, fields.optional_times_s("visits_s"))


@dataclass(frozen=True)
class Drift:
    """How far the anchor's time changed over a sweep, relatively: last to first visit, slowest to fastest."""

    visits: int
    last_to_first: float
    spread: float

    def to_record(self) -> dict[str, Any]:
        return {"visits": self.visits, "last_to_first": self.last_to_first, "spread": self.spread}

    @classmethod
    def from_fields(cls, fields: Fields) -> Drift:
        change, spread = fields.known_number("last_to_first"), fields.known_number("spread")
        return cls(fields.known_count("visits"), change, spread)


@dataclass
class Profile:
    """Everything a sweep knows; a killed sweep is resumed from it, and a CSV gives its measurements alone.

    Units: elapsed_s in seconds over all sessions, None where the file does not tell it. request: what must agree
    for a sweep to be resumed. identity: what a step's time depends on beside the configuration, None where the
    file does not tell it. base: the configuration that the grid lies around; anchor: the one that is visited again
    and again; chosen: the one that pictures ring. cost_model is fitted anew to what was read and never read
    itself; why_no_cost_model says why there is none.
    """

    measurements: list[Measurement] = field(default_factory=list)
    status: str = "complete"
    started_at: str = ""
    elapsed_s: float | None = None
    request: Mapping[str, object] = field(default_factory=dict)
    identity: Mapping[str, Fact] | None = None
    machine: Mapping[str, Fact] = field(default_factory=dict)
    model: Mapping[str, Fact] = field(default_factory=dict)
    rates: Rates | None = None
    rates_at_end: Rates | None = None
    roofline: Roofline | None = None
    base: Configuration | None = None
    anchor: Configuration | None = None
    plan: SweepPlan | None = None
    cost_model: CostModel | None = None
    why_no_cost_model: str = ""
    holdout: list[Prediction] = field(default_factory=list)
    chosen: Measurement | None = None
    drift: Drift | None = None

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    @property
    def usable_cost_model(self) -> CostModel | None:
        """The cost model unless it is rejected."""
        return None if self.cost_model is None or self.cost_model.is_rejected else self.cost_model

    @property
    def held_out(self) -> list[Measurement]:
        """What was measured after it was predicted, and may be judged by."""
        best = [prediction.best for prediction in self.holdout]
        return [visit for visit in best if visit is not None and visit.is_measured]

    def first_of(self, configuration: Configuration) -> Measurement | None:
        """The first measurement of a configuration, if there is one."""
        return next((each for each in self.measurements if each.configuration == configuration), None)

    def to_record(self) -> dict[str, Any]:
        """The profile as profile.json holds it."""
        model, roofline = self.usable_cost_model, self.roofline
        return {
            "status": self.status,
            "started_at": self.started_at,
            "elapsed_s": self.elapsed_s,
            "request": self.request,
            "identity": self.identity,
            "machine": self.machine,
            "model": self.model,
            "rates": None if self.rates is None else self.rates.to_record(),
            "rates_at_end": None if self.rates_at_end is None else self.rates_at_end.to_record(),
            "roofline": None if roofline is None else roofline.to_record(model),
            "base": None if self.base is None else self.base.to_record(),
            "anchor": None if self.anchor is None else self.anchor.to_record(),
            "plan": None if self.plan is None else self.plan.to_record(),
            "measurements": [each.to_record() for each in self.measurements],
            "cost_model": None if self.cost_model is None else self.cost_model.to_record(),
            "why_no_cost_model": self.why_no_cost_model,
            "holdout": [prediction.to_record() for prediction in self.holdout],
            "chosen": None
            if self.chosen is None
            else {**self.chosen.configuration.to_record(), "step_s": self.chosen.step_s},
            "drift": None if self.drift is None else self.drift.to_record(),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Profile:
        """A profile as `to_record` wrote it, or as 0.1 did, which named some keys otherwise; all are optional
        but the measurements."""
        rows, holdout = _either(fields, "measurements", "rows"), _either(fields, "holdout", "held_out")
        roofline = _either(fields, "roofline", "floors")
        refused = _either(fields, "why_no_cost_model", "fit_refused")
        is_identified = isinstance(fields.record.get("identity"), dict)
        return cls(
            measurements=[Measurement.from_fields(each) for each in fields.sections(rows, "measurement")],
            status=fields.text("status") or "complete",
            started_at=fields.text("started_at"),
            elapsed_s=fields.duration_s({"elapsed_s": 1.0}, "elapsed_s"),
            request=fields.facts("request"),
            identity=_with_current_names(fields.facts("identity")) if is_identified else None,
            machine=fields.facts("machine"),
            model=fields.facts("model"),
            rates=Rates.from_fields(fields.section("rates")) if fields.has("rates") else None,
            rates_at_end=(
                Rates.from_fields(fields.section("rates_at_end")) if fields.has("rates_at_end") else None
            ),
            roofline=Roofline.from_fields(fields.section(roofline)) if fields.has(roofline) else None,
            base=Configuration.from_fields(fields.section("base")) if fields.has("base") else None,
            anchor=Configuration.from_fields(fields.section("anchor")) if fields.has("anchor") else None,
            plan=SweepPlan.from_fields(fields.section("plan")) if fields.has("plan") else None,
            why_no_cost_model=fields.text(refused),
            holdout=[Prediction.from_fields(each) for each in fields.sections(holdout, "held out")],
            chosen=Measurement.from_fields(fields.section("chosen")) if fields.has("chosen") else None,
            drift=Drift.from_fields(fields.section("drift")) if fields.has("drift") else None,
        )


def _either(fields: Fields, key: str, former: str) -> str:
    """`key`, or what 0.1 called it where only that is there."""
    return former if key not in fields.record and former in fields.record else key


def key_of(name: str) -> str:
    """Where the configuration has what `identity_of` calls `name`: model.layers, step.tbptt."""
    if name in OPTIMIZER_KEYS:
        return f"optimizer.{name}"
    return f"step.{name}" if name == "tbptt" else f"model.{name}"


def _with_current_names(identity: Mapping[str, Fact]) -> dict[str, Fact]:
    """An identity that calls its choices what they are called now."""
    return {name: current_name(key_of(name), value) for name, value in identity.items()}
