"""`mlx-amort data`, as its reader sees it."""

from __future__ import annotations

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
