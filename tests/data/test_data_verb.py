"""`mlx-amort data`, as its reader sees it."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_amort.cli.data import command
from mlx_amort.config.presets import DEFAULT_PRESET
from mlx_amort.config.reading import resolve
from mlx_amort.errors import UserError

# Builds of zlib differ by a few bytes, so its figure is the machine's own.
ZLIB_BITS = (
    8 * len(zlib.compress(b"one line, ten\n"[-2:] + b"one line, ten\n" * 5 + b"and, then\n" * 5, 9)) / 122
)
CARD = f"""\
chunks of 32 bytes (--seq), patch stride 4 (preset demo, the default; --preset names another)

corpus
  size        610 bytes in 2 files
  left out    c.bin: binary
  split       488 to train on, 122 held out: its end, in 2 of 2 files: a.txt to b.txt
  entropy     3.116 bits per byte, order 0, over the whole corpus
  zlib -9     {ZLIB_BITS:.3f} bits per byte, over the validation part
  boundaries  against 8 slots in a chunk of 32 bytes (patch stride 4)
    every     0.312 per byte; 100.0% of 19 chunks overflow; 20.0% of boundaries get no slot
    first     0.238 per byte; 0.0% of 19 chunks overflow; 0.0% of boundaries get no slot
  sample
    one line, ten
    one line, ten
    one line, ten
    one line, ten
"""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("one line, ten\n" * 40)
    (folder / "b.txt").write_text("and, then\n" * 5)
    (folder / "c.bin").write_bytes(bytes(8))
    monkeypatch.chdir(tmp_path)
    return "corpus"


def test_the_card_is_printed(corpus: str) -> None:
    result = CliRunner().invoke(command, [corpus, "--seq", "32", "--validation-fraction", "0.2"])
    assert result.exit_code == 0, result.output
    assert result.output == CARD + "\n"


def test_json_holds_a_card_a_corpus(corpus: str) -> None:
    result = CliRunner().invoke(command, [corpus, "builtin:docs", "--json"])
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.output)["corpora"]
    assert (first["name"], first["units"], second["name"]) == (corpus, 610, "builtin:docs")


def test_what_is_left_out_is_named_with_what_makes_text_of_it(corpus: str, tmp_path: Path) -> None:
    (tmp_path / corpus / "d.txt.gz").write_bytes(gzip.compress(b"text" * 50))
    (tmp_path / corpus / "copy.txt").write_bytes((tmp_path / corpus / "a.txt").read_bytes())
    lines = CliRunner().invoke(command, [corpus]).output.splitlines()
    assert [line for line in lines if "left out" in line] == [
        "  left out    c.bin: binary",
        "  left out    d.txt.gz: gzip-compressed; make text of it: gzip -dc < corpus/d.txt.gz > corpus/d.txt",
        "  left out    copy.txt: a copy of a.txt",
    ]


def test_a_validation_corpus_has_a_card_of_its_own(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("held out. " * 30)
    arguments = [corpus, "--validation", "held_out.txt"]
    output = CliRunner().invoke(command, arguments).output
    assert "  split       all 610 to train on\n" in output and "  split       all 300 held out\n" in output
    assert output.count("zlib -9") == 1
    first, second = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)["corpora"]
    assert (first["zlib_bits"], first["validation_units"], second["train_units"]) == (None, 0, 0)
    assert "weight" in first and "weight" not in second


def test_a_split_and_a_script_without_spaces_are_told(corpus: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / corpus / f"{part}.txt").write_text(
            "这是一个没有空格的文字" * 300 + part, encoding="utf-8"
        )
    output = CliRunner().invoke(command, [corpus]).output
    assert "  note        train.txt and test.txt are both trained on: " in output
    assert "of the boundaries of corpus get no slot; model.patch_stride=2 leaves 0%" in output
    notes = json.loads(CliRunner().invoke(command, [corpus, "--json"]).output)["corpora"][0]["notes"]
    assert len(notes) == 2


def test_bytes_of_any_kind_are_read_on_purpose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(256)) * 9))
    assert isinstance(CliRunner().invoke(command, ["a.gz"]).exception, UserError)
    result = CliRunner().invoke(command, ["a.gz", "--raw"])
    assert result.exit_code == 0
    assert (
        "  note        a.gz is gzip-compressed: its bytes are read as they are (data.raw)\n" in result.output
    )


def test_the_split_is_told_and_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some words. " * 20_000)
    output = CliRunner().invoke(command, ["a.txt"]).output
    assert "  split       228,000 to train on, 12,000 held out: in 2 blocks spread over it\n" in output
    output = CliRunner().invoke(command, ["a.txt", "--validation-split", "tail"]).output
    assert "  split       228,000 to train on, 12,000 held out: its end\n" in output


def test_weights_are_spelled_as_for_train(corpus: str) -> None:
    arguments = [f"{corpus}:3", "builtin:docs:1"]
    assert (
        "  weight      3, so 75.0% of the rows a run draws" in CliRunner().invoke(command, arguments).output
    )
    cards = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)["corpora"]
    assert [(card["name"], card["weight"], card["row_share"]) for card in cards] == [
        (corpus, 3.0, 0.75),
        ("builtin:docs", 1.0, 0.25),
    ]


def test_chunks_and_slots_are_those_of_the_preset(corpus: str) -> None:
    def card(*arguments: str) -> dict[str, object]:
        found = json.loads(CliRunner().invoke(command, [corpus, *arguments, "--json"]).output)
        return {"preset": found["preset"], **found["corpora"][0]}

    for name in ("demo", "veritate_200m"):
        model = resolve(preset=name).model
        found = card() if name == DEFAULT_PRESET else card("--preset", name)
        wanted = (name, model.seq, model.patch_stride, model.slots)
        assert tuple(found[key] for key in ("preset", "seq", "patch_stride", "slots")) == wanted
    assert card("--preset", "veritate_200m", "--seq", "64")["seq"] == 64
    told = CliRunner().invoke(command, [corpus, "--preset", "veritate_200m"]).output.splitlines()[0]
    assert told == "chunks of 1,024 bytes (preset veritate_200m), patch stride 4 (preset veritate_200m)"


def test_mistakes(corpus: str) -> None:
    assert CliRunner().invoke(command, []).exit_code == 2
    assert CliRunner().invoke(command, [corpus, "--seq", "0"]).exit_code == 2
    for arguments in (["nowhere"], [corpus, "--preset", "nothing"]):
        assert isinstance(CliRunner().invoke(command, arguments).exception, UserError)
