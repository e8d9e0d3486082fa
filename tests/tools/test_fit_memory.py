"""The tool that fits the memory model's counts: what it puts into the document, and what it reads again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_amort.config.reading import resolve, to_dict
from mlx_amort.cost.memory.counts import read_counts, values_of, with_values
from tests.reference import memory_by_hand
from tools import fit_memory


def test_the_counts_replace_those_in_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "memory.md"
    before = fit_memory.DOCUMENT.read_text(encoding="utf-8")
    document.write_text(before, encoding="utf-8")
    shipped = read_counts(fit_memory.SHIPPED / "cpu.json")
    other = with_values(shipped, {name: value + 1 for name, value in values_of(shipped).items()})
    monkeypatch.setattr(memory_by_hand, "DOCUMENT", document)
    fit_memory.put_into_document(other, document)
    assert memory_by_hand.documented_counts() == pytest.approx(values_of(other))
    fit_memory.put_into_document(shipped, document)
    assert document.read_text(encoding="utf-8") == before


def test_kept_measurements_are_not_measured_again(tmp_path: Path) -> None:
    config = resolve(preset="demo")
    kept = tmp_path / "peaks.jsonl"
    kept.write_text(
        json.dumps({"config": to_dict(config), "phase_bytes": {"window": 7, "update": 5}}) + "\n",
        encoding="utf-8",
    )
    (found,) = fit_memory.measure([config], memory_bytes=0, kept=kept)
    assert (found.window_bytes, found.update_bytes) == (7, 5)
    assert fit_memory.read_observations(kept) == [found]
