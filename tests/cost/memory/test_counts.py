"""The counts table: what ships and what the document says of it, one's own in its place, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from mlx_amort.config.reading import resolve
from mlx_amort.cost.memory import counts as tables
from mlx_amort.cost.memory.counts import (
    counts_of,
    own_counts_path,
    read_counts,
    values_of,
    with_values,
    write_counts,
)
from mlx_amort.cost.memory.estimate import estimate, estimate_with
from mlx_amort.errors import UserError
from tests.reference.memory_by_hand import documented_counts

SHIPPED = Path(tables.__file__).with_name("counts") / "cpu.json"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    tables._counts_at.cache_clear()


def test_the_document_has_the_shipped_counts() -> None:
    assert documented_counts() == values_of(read_counts(SHIPPED)), (
        "run python tools/fit_memory.py --document, which puts the table into docs/memory.md"
    )


def test_every_count_decides_some_estimate() -> None:
    counts = read_counts(SHIPPED)
    precisions, sizes = ("fp32", "bf16", "bf16-pure"), ((64, 1), (192, 6), (512, 6), (512, 1))
    configs = [
        resolve(
            overrides=[
                *(f"model.trunk={trunk}", f"step.precision={precision}", f"model.seq={seq}"),
                *(f"step.batch={batch}", f"step.window={window}", f"model.layers={layers}"),
                f"step.activation_checkpointing={recomputes}",
                *(f"model.ffn={ffn}", f"model.hidden={hidden}", "model.heads=2"),
                *muon,
            ]
        )
        for trunk in ("dense", "recurrent", "hybrid")
        for precision in precisions
        for seq, batch in sizes
        for window, layers in ((1, 1), (2, 3))
        for recomputes in ("false", "true")
        for ffn, hidden in ((32, 256), (1024, 64))
        for muon in (
            (),
            ("optimizer.name=adamw",),
            ("optimizer.muon_dtype=bfloat16", "optimizer.coefficients=jordan"),
        )
    ]
    plain = [estimate_with(config, counts).phase_bytes for config in configs]
    without_effect = []
    for name, value in values_of(counts).items():
        more = with_values(counts, {name: 3 * value + 1})
        found = (estimate_with(config, more).phase_bytes for config in configs)
        if all(own == other for own, other in zip(plain, found, strict=True)):
            without_effect.append(name)
    # Rectangles in more than five stacks need models of hundreds of megabytes.
    assert set(without_effect) <= {"update.rectangles_pure"}


def test_counts_fitted_on_this_machine_are_used_for_the_same_mlx_only() -> None:
    shipped = counts_of("cpu")
    config = resolve(preset="demo")
    before = estimate(config).peak_bytes
    doubled = with_values(shipped, {name: 2 * value for name, value in values_of(shipped).items()})
    own = replace(doubled, mlx=metadata.version("mlx"), machine="this one")
    write_counts(own, own_counts_path("cpu"))
    assert values_of(counts_of("cpu")) == values_of(own) and "this one" in counts_of("cpu").source
    assert estimate(config).peak_bytes > before
    write_counts(replace(own, mlx="0.0.1"), own_counts_path("cpu"))
    assert estimate(config).peak_bytes == before


def test_a_gpu_without_a_table_multiplies_bfloat16_as_it_is() -> None:
    cpu, metal = counts_of("cpu"), counts_of("metal")
    assert metal.backend == "metal" and "the CPU of" in metal.source
    assert metal.bfloat16.feed_forward == cpu.float32.feed_forward
    assert metal.bfloat16.attention == cpu.bfloat16.attention
    own = replace(cpu, backend="metal", mlx=metadata.version("mlx"), machine="a Mac")
    write_counts(own, own_counts_path("metal"))
    assert values_of(counts_of("metal")) == values_of(cpu)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda record: record.pop("update"), "it must have exactly"),
        (lambda record: record["float32"]["head"].update(more=1.0), "float32.head must have exactly"),
        (lambda record: record["update"].update(squares=-1), "update.squares is -1"),
        (lambda record: record["update"].update(squares=float("nan")), "update.squares is nan"),
        (lambda record: record["update"].update(squares=True), "update.squares is True"),
        (lambda record: record.update(backend="tpu"), "backend is 'tpu'"),
    ],
)
def test_a_damaged_table_is_refused_by_name(damage, said: str) -> None:  # type: ignore[no-untyped-def]
    record = json.loads(SHIPPED.read_text(encoding="utf-8"))
    damage(record)
    path = own_counts_path("cpu")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError) as refusal:
        counts_of("cpu")
    assert said in str(refusal.value) and str(path) in str(refusal.value)
    assert "delete it, or fit it again" in str(refusal.value)
