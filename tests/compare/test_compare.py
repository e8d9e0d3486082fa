"""Runs against each other: the published pair, interpolation and its limits, warnings, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.cli.compare import command
from mlx_amort.compare import Curve, compare, read_curve
from mlx_amort.errors import UserError
from tests.compare.written import append_rows, validation, with_seed, write_csv, write_run
from tests.train.tiny import tiny_config

# Validation bits per byte of the published pair of models (80M and 270M parameters) at equal bytes seen.
PUBLISHED = {200e6: (1.085, 1.044), 395e6: (0.993, 0.987), 590e6: (0.954, 0.937)}


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [
        str(write_csv(tmp_path / name, {seen: bits[index] for seen, bits in PUBLISHED.items()}))
        for index, name in enumerate(("80m.csv", "270m.csv"))
    ]


def test_the_published_pair(pair: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [*pair, "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.output)
    found = {place["bytes"]: tuple(place["val_bits"]) for place in record["at_bytes"]}
    assert found == PUBLISHED
    assert [place["relative"][1] for place in record["at_bytes"]] == pytest.approx(
        [1.044 / 1.085 - 1, 0.987 / 0.993 - 1, 0.937 / 0.954 - 1]
    )
    # The larger model comes down to the smaller one's last 0.954 on its way from 0.987 to 0.937.
    reached = 395e6 + (590e6 - 395e6) * (0.987 - 0.954) / (0.987 - 0.937)
    assert record["last_common_quality"]["val_bits"] == 0.954
    assert record["last_common_quality"]["bytes"] == pytest.approx([590e6, reached])
    assert record["last_common_quality"]["token_advantage"] == pytest.approx([1.0, 590e6 / reached])
    assert any("-1.78 % rests on one seed" in warning for warning in record["warnings"])


def test_what_the_terminal_shows(pair: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "pair.png"
    result = CliRunner().invoke(command, [*pair, "--at", "150M,200M,297.5M,1G", "--out", str(picture)])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "bytes 80m.csv 270m.csv difference" in lines
    assert "150,000,000 - - -" in lines and "1,000,000,000 - - -" in lines
    assert "200,000,000 1.0850 1.0440 -3.78 %" in lines and "297,500,000 1.0390 1.0155 -2.26 %" in lines
    assert "-: outside the bytes at which this run was validated; nothing is extrapolated" in lines
    assert "not compared: a CSV does not tell them" in lines
    assert picture.read_bytes()[:4] == b"\x89PNG"


@given(st.lists(st.floats(0.5, 8.0), min_size=1, max_size=6), st.floats(-1, 8))
def test_a_curve_is_never_left(bits: list[float], point: float) -> None:
    curve = Curve("c", tuple(map(float, range(len(bits)))), tuple(bits))
    found = curve.at("bytes", point)
    if 0 <= point <= len(bits) - 1:
        around = bits[int(point) : int(point) + 2]
        assert found is not None and min(around) - 1e-9 <= found <= max(around) + 1e-9
    else:
        assert found is None


@given(st.lists(st.floats(0.5, 8.0), min_size=1, max_size=6))
def test_a_quality_is_reached_where_the_curve_has_it(bits: list[float]) -> None:
    curve = Curve("c", tuple(map(float, range(len(bits)))), tuple(bits))
    reached = curve.reaches("bytes", min(bits))
    assert reached is not None and curve.at("bytes", reached) == pytest.approx(min(bits))
    assert curve.reaches("bytes", min(bits) - 0.1) is None
    assert curve.reaches("bytes", bits[0] + 0.1) is None


def test_equal_seconds_count_every_step(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    slow = write_run(tmp_path / "slow", config, [4.0, 3.0, 2.0, 1.5], step_s=1.0)
    fast = write_run(tmp_path / "fast", config, [4.0, 3.0, 2.0, 1.5], step_s=0.5)
    compared = compare([read_curve(slow), read_curve(fast)])
    assert compared.curves[0].seconds == (2, 4, 6, 8) and compared.curves[1].seconds == (1, 2, 3, 4)
    assert {point.at: point.bits for point in compared.at_seconds} == {
        2: (4.0, 3.0),
        3: (3.5, 2.0),
        4: (3.0, 1.5),
    }
    assert compared.quality.seconds == (8, 4) and compared.quality.token_advantage == (1.0, 1.0)


def test_warnings_name_what_makes_figures_those_of_other_texts(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    larger = dataclasses.replace(config, step=dataclasses.replace(config.step, window=2))
    other_fraction = dataclasses.replace(
        config, data=dataclasses.replace(config.data, validation_fraction=0.2)
    )
    first = write_run(tmp_path / "first", config, [3.0, 2.0])
    for name, wanted, other in [
        ("corpora", "other corpora", write_run(tmp_path / "a", larger, [3.0, 1.0], fingerprint="g")),
        ("fraction", "hold out 0.1 and 0.2", write_run(tmp_path / "b", other_fraction, [3.0, 1.0])),
        ("bytes", "over 500 and 600 bytes", write_run(tmp_path / "c", larger, [3.0, 1.0], val_bytes=600)),
    ]:
        (warning,) = compare([read_curve(first), read_curve(other)]).warnings
        assert wanted in warning, name


def test_repeats_of_a_run_are_known(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    first = write_run(tmp_path / "first", config, [3.0, 2.0])
    for seed, wanted in ((0, "comes from repeating the run"), (1, "comes from the seed")):
        again = write_run(tmp_path / f"again{seed}", with_seed(config, seed), [3.0, 1.98])
        (warning,) = compare([read_curve(first), read_curve(again)]).warnings
        assert "-1.00 %" in warning and wanted in warning


def test_a_small_difference_needs_two_seeds_of_each(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    other = dataclasses.replace(config, step=dataclasses.replace(config.step, window=2))
    curves = [
        read_curve(write_run(tmp_path / name, with_seed(which, seed), [3.0, last]))
        for name, which, seed, last in [("a", config, 0, 2.0), ("b", other, 0, 1.96), ("c", config, 1, 2.01)]
    ]
    compared = compare(curves[:2])
    assert compared.differences == {str(tmp_path / "b"): ["step.window: 1 and 2"]}
    assert [warning for warning in compared.warnings if "-2.00 % rests on one seed" in warning]
    third = read_curve(write_run(tmp_path / "d", with_seed(other, 1), [3.0, 1.97]))
    told = compare([*curves, third]).warnings
    assert not [warning for warning in told if "rests on one seed" in warning]
    assert [warning for warning in told if "+0.50 % comes from the seed" in warning]
    large = read_curve(write_run(tmp_path / "e", other, [3.0, 1.5]))
    assert not compare([curves[0], large]).warnings


def test_runs_without_a_common_range_say_so(tmp_path: Path) -> None:
    early = write_csv(tmp_path / "early.csv", {1000: 3.0, 2000: 2.5})
    late = write_csv(tmp_path / "late.csv", {3000: 2.0, 4000: 1.5})
    result = CliRunner().invoke(command, [str(early), str(late)])
    assert "not compared: the runs have no bytes in common where all were validated" in result.output
    assert "before its first validation" in result.output


def test_names_drive_no_terminal(tmp_path: Path) -> None:
    paths = [str(write_csv(tmp_path / name, {10: 3.0, 20: 2.0})) for name in ("a\x1b[31m.csv", "b\n.csv")]
    printed = CliRunner().invoke(command, paths).output
    assert "\x1b" not in printed and "a\\x1b[31m.csv: 2 validations" in printed and "b\\n.csv: " in printed


def test_mistakes_are_told(tmp_path: Path, pair: list[str]) -> None:
    good, empty = pair[0], tmp_path / "empty"
    empty.mkdir()
    unvalidated = write_run(tmp_path / "unvalidated", tiny_config(tmp_path / "t"), [])
    ids = dataclasses.replace(tiny_config(tmp_path / "t"))
    ids = dataclasses.replace(
        ids,
        model=dataclasses.replace(ids.model, trunk="dense"),
        data=dataclasses.replace(ids.data, dtype="uint16"),
    )
    tokens = write_run(tmp_path / "tokens", ids, [3.0])
    (tmp_path / "words.csv").write_text("bytes,val_bits\n10,many\n")
    (tmp_path / "columns.csv").write_text("bytes,loss\n10,2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "headed.csv").write_text("bytes,val_bits\n")
    for arguments, message in [
        ([good], "at least two runs"),
        ([good, good], "named twice"),
        ([*pair, "--out", str(empty)], r"is a folder; name a file, such as .*empty/compare\.png"),
        ([*pair, "--out", "/dev/full"], "is not a regular file"),
        ([good, str(empty)], "is not the folder of a run"),
        ([good, str(tmp_path / "nowhere")], "no such folder"),
        ([good, str(unvalidated)], "has no validation in its log yet"),
        ([good, str(tokens)], "bits per token id"),
        ([good, str(tmp_path / "words.csv")], r"words\.csv:2: val_bits is 'many', not a number"),
        ([good, str(tmp_path / "columns.csv")], "has no column val_bits"),
        ([good, str(tmp_path / "binary")], "neither a run's folder nor a CSV"),
        ([good, str(tmp_path / "headed.csv")], "has no rows"),
        ([*pair, "--at", "12 parsecs"], "unknown unit"),
        ([*pair, "--out", str(tmp_path / "p.txt")], "cannot be drawn"),
    ]:
        with pytest.raises(UserError, match=message):
            CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_validations_of_more_text_are_no_part_of_the_curve(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    end = 4 * config.bytes_per_step
    ended, stopped = (write_run(tmp_path / name, config, [3.0, 2.0]) for name in ("ended", "stopped"))
    append_rows(ended, validation(4, end, 2.5, 9000, True))
    curves = compare([read_curve(ended), read_curve(stopped)]).curves
    assert curves[0].val_bits == curves[1].val_bits == (3.0, 2.0)
    assert curves[0].at("bytes", 0.75 * end) == curves[1].at("bytes", 0.75 * end) == 2.5
    printed = CliRunner().invoke(command, [str(ended), str(stopped)]).output
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert f"ended {end} 2.5000 9,000 (all)" in lines and f"stopped {end} 2.0000 500" in lines
    record = json.loads(CliRunner().invoke(command, [str(ended), str(stopped), "--json"]).output)
    assert record["runs"][0]["end"] == {"bytes": end, "val_bits": 2.5, "val_bytes": 9000, "whole": True}


def test_runs_are_compared_over_the_text_that_both_validated(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "t")
    end = 4 * config.bytes_per_step
    often = append_rows(
        write_run(tmp_path / "often", config, [3.0, 2.0]), validation(4, end, 2.5, 9000, True)
    )
    once = append_rows(write_run(tmp_path / "once", config, []), validation(4, end, 2.75, 9000, True))
    compared = compare([read_curve(often), read_curve(once)])
    assert [(point.at, point.bits) for point in compared.at_bytes] == [(end, (2.5, 2.75))]
    assert not [warning for warning in compared.warnings if "different amounts of text" in warning]


def test_other_corpora_are_said_first_and_have_no_difference(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "sub" / ".." / "one.txt", eval_every=2)
    other = tiny_config(tmp_path / "two.txt", eval_every=5, save_every=3)
    first = write_run(tmp_path / "first", config, [3.0, 2.0])
    second = write_run(tmp_path / "second", other, [3.0, 1.0], fingerprint="g")
    printed = CliRunner().invoke(command, [str(first), str(second)]).output
    assert printed.startswith("warning: ") and "validated on other corpora" in printed.splitlines()[0]
    assert "difference" not in printed and "times fewer" not in printed
    assert f"  data.sources: {tmp_path / 'one.txt'} and {tmp_path / 'two.txt'}\n" in printed
    assert "figures: run.eval_every: 2 and 5; run.save_every: null and 3\n" in printed
    record = json.loads(CliRunner().invoke(command, [str(first), str(second), "--json"]).output)
    assert {relative for place in record["at_bytes"] for relative in place["relative"][1:]} == {None}
