"""What a run was trained on, as its record tells, and whether a resumption reads the same.

Where a corpus lies may change from one session to the next; its content may not.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from mlx_amort.config.reading import BUILTIN, SECTIONS, differing_keys
from mlx_amort.config.values import Config, DataConfig
from mlx_amort.data.corpus import Corpus, unit_name
from mlx_amort.data.opening import Corpora
from mlx_amort.errors import UserError
from mlx_amort.train.run_folder import RunFolder

FIXED = (
    "model.",
    "data.",
    "step.batch",
    "step.chunks",
    "step.accum",
    "step.precision",
    "optimizer.name",
    "run.seed",
)


def record_of(corpora: Corpora) -> dict[str, list[dict[str, Any]]]:
    """What run.json keeps: `corpora`, and `validation` where that is a corpus of its own."""
    record = {"corpora": [_record_of(corpus) for corpus in corpora.training]}
    if corpora.held_out is not corpora.training:
        record["validation"] = [_record_of(corpus) for corpus in corpora.held_out]
    return record


def _record_of(corpus: Corpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "units": corpus.units,
        "fingerprint": corpus.fingerprint(),
        "content": corpus.content(),
    }


def fixed_changes(saved: Config, config: Config) -> list[str]:
    """What differs and may not; where the corpora lie may, for their content is held against the record."""
    there = config.data
    sources = saved.data.sources
    has_same_shares = [source.weight for source in sources] == [source.weight for source in there.sources]
    # The only corpus has all the rows, whatever its weight.
    if has_same_shares or len(sources) == len(there.sources) == 1:
        sources = there.sources
    validation = there.validation if saved.data.validation and there.validation else saved.data.validation
    moved = dataclasses.replace(saved.data, sources=sources, validation=validation)
    saved = dataclasses.replace(saved, data=moved)
    return [str(change) for change in differing_keys(saved, config, SECTIONS) if change.key.startswith(FIXED)]


def check_there(path: Path, data: DataConfig) -> None:
    """Tell of corpora that were moved or deleted since the run was saved."""
    named = [("--data", source.path) for source in data.sources]
    named += [("--validation", data.validation)] if data.validation else []
    for flag, corpus in named:
        if not corpus.startswith(BUILTIN) and not os.path.lexists(corpus):
            raise UserError(
                f"--resume {path}",
                f"its corpus '{corpus}' is not there",
                f"name where it lies now with {flag}, for the same content, or bring it back",
            )


def check_same(path: Path, corpora: Corpora, record: dict[str, Any]) -> None:
    """Hold the open corpora against the record of the run. Raises: UserError for another content or count."""
    known_corpora = [*record["corpora"], *record.get("validation", ())]
    if len(corpora.all) != len(known_corpora):
        raise UserError(
            str(RunFolder(path).record),
            f"tells of {len(known_corpora)} corpora, and the run's configuration names {len(corpora.all)}",
            "restore it from a copy, or start a new run with --out",
        )
    for corpus, known in zip(corpora.all, known_corpora, strict=True):
        # 0.1 wrote only the fingerprint, which follows the names of the files too.
        key, found = (
            ("content", corpus.content) if "content" in known else ("fingerprint", corpus.fingerprint)
        )
        if found() != known[key]:
            unit = unit_name(corpus.dtype)
            how = f"{known['units']:,} {unit}s when the run started, {corpus.units:,} now"
            if corpus.units == known["units"]:
                how = f"{corpus.units:,} {unit}s as before, with another content"
            what = "changed"
            if corpus.name != known["name"]:
                what = f"is not '{known['name']}', which the run was trained on"
            raise UserError(
                f"--resume {path}",
                f"corpus '{corpus.name}' {what}: {how}",
                "bring back what it was, or start a new run with --out",
            )
