"""Tables whose columns stand in line, whatever the width of their characters."""

from __future__ import annotations

from mlx_amort.cli.tables import align, columns_of


def test_columns_stand_in_line() -> None:
    table = align(["run", "bytes"], [["a", "1"], ["名前", "12,345"], ["e\u0301", "7"]])
    assert table.splitlines() == ["run    bytes", "a          1", "名前  12,345", "e\u0301          7"]
    assert {columns_of(line) for line in table.splitlines()} == {12}


def test_text_columns_are_flush_left_without_trailing_blanks() -> None:
    assert align(["a", "note"], [["1", "x"], ["22", ""]], text_columns=(1,)) == " a  note\n 1  x\n22"
