"""Runs whose validations meet nowhere, at one point, or between each other's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_amort.cli.compare import command
from mlx_amort.compare import compare, read_curve
from tests.compare.written import append_rows, validation, write_run
from tests.train.tiny import tiny_config


def test_runs_whose_validations_do_not_meet_are_compared_by_their_training(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t", eval_every=2)
    end = 8 * config.bytes_per_step
    often = write_run(tmp_path / "often", config, [3.0, 2.5, 2.0, 1.9])
    once = write_run(tmp_path / "once", tiny_config(tmp_path / "t"), [None] * 6)
    append_rows(once, validation(12, end + 1, 1.8, 9000, True))
    append_rows(often, validation(8, end, 2.1, 9000, True))
    curves = [read_curve(often), read_curve(once)]
    compared = compare(curves)
    assert compared.at_bytes == ()
    assert [point.bits for point in compared.training] == [(2.0, 2.0)] * 6
    assert compared.training[-1].at == end and compared.training[0].at > config.bytes_per_step
    told = CliRunner().invoke(command, [str(often), str(once)]).output
    assert "not compared: the runs have no bytes in common" in told
    assert "training, bits per byte at equal bytes seen: means of the steps around" in told
    assert (
        "once was validated once, so validations meet nowhere; --eval-every STEPS validates on the way"
        in told
    )
    record = json.loads(CliRunner().invoke(command, [str(often), str(once), "--json"]).output)
    assert len(record["training_at_bytes"]) == 6 and record["training_at_bytes"][0]["train_bits"] == [
        2.0,
        2.0,
    ]


def test_validations_of_other_amounts_are_interpolated_where_those_of_one_text_do_not_meet(
    tmp_path: Path,
) -> None:
    config = tiny_config(tmp_path / "t", eval_every=2)
    end = 8 * config.bytes_per_step
    long = write_run(tmp_path / "long", config, [3.0, 2.5, 2.0, 1.9])
    append_rows(long, validation(8, end, 2.1, 9000, True))
    short = write_run(tmp_path / "short", config, [None, None])
    append_rows(short, validation(5, 5 * config.bytes_per_step, 2.2, 9000, True))
    compared = compare([read_curve(long), read_curve(short)])
    assert [point.bits for point in compared.at_bytes] == [(2.25, 2.2)]
    assert any("different amounts of text" in warning for warning in compared.warnings)
    assert any("meet at one point only" in warning for warning in compared.warnings)


def test_runs_that_are_validated_at_different_steps_are_interpolated(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t", eval_every=2)
    often = write_run(tmp_path / "often", config, [3.0, 2.5, 2.0, 1.5])
    seldom = write_run(tmp_path / "seldom", tiny_config(tmp_path / "t", eval_every=3), [])
    for step, bits in ((3, 2.7), (6, 1.8)):
        append_rows(seldom, validation(step, step * config.bytes_per_step, bits, 500, False))
    size = config.bytes_per_step
    compared = compare([read_curve(often), read_curve(seldom)])
    assert {point.at: point.bits for point in compared.at_bytes} == {
        3 * size: (2.75, 2.7),
        4 * size: (2.5, pytest.approx(2.4)),
        6 * size: (2.0, 1.8),
    }
    assert "training, bits per" not in CliRunner().invoke(command, [str(often), str(seldom)]).output
