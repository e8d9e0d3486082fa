"""The flag of `train` and its kin that sets a key, for those that declare it, print it or point at it."""

from __future__ import annotations

from typing import Final

FLAG_OF: Final = {
    "model.trunk": "--trunk",
    "data.sources": "--data",
    "data.validation": "--validation",
    "step.batch": "--batch",
    "step.chunks": "--chunks",
    "model.seq": "--seq",
    "step.window": "--window",
    "step.accum": "--accum",
    "optimizer.name": "--optimizer",
    "step.precision": "--precision",
    "step.activation_checkpointing": "--activation-checkpointing",
    "schedule.base_lr": "--lr",
    "schedule.name": "--schedule",
    "run.steps": "--steps",
    "run.bytes": "--bytes",
    "run.seed": "--seed",
    "run.save_every": "--save-every",
    "run.eval_every": "--eval-every",
    "run.memory_limit_bytes": "--memory-limit",
}
"""Any other key goes through --set."""

KEY_OF: Final = {flag: key for key, flag in FLAG_OF.items()}
