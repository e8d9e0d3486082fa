"""Figures are drawn whatever MPLBACKEND, matplotlibrc and the names of runs say, and leave matplotlib as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from mlx_amort import plots
from mlx_amort.plots.lettering import LONGEST_NAME, drawable
from tests.plots.made import step_row

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
DRAW = """
import os, sys, pathlib
{before}
from mlx_amort import plots
plots.loss_and_rate([dict(step=n, bytes=9 * n, loss_bits=3.0, step_s=0.1) for n in (1, 2, 3)], pathlib.Path("x.png"))
assert os.environ.get("MPLBACKEND") == {backend!r}, os.environ.get("MPLBACKEND")
assert "matplotlib.pyplot" not in sys.modules
"""


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("module://matplotlib_inline.backend_inline", "text.usetex: True\n"),
        ("no such backend", "font.family: nowhere\nlines.linewidth: 9\n"),
    ],
)
def test_an_inherited_backend_and_matplotlibrc_do_not_matter(
    backend: str, settings: str, tmp_path: Path
) -> None:
    (tmp_path / "matplotlibrc").write_bytes(settings.encode("latin-1"))
    environment = {**os.environ, "MPLBACKEND": backend, "PYTHONPATH": str(ROOT)}
    program = DRAW.format(before="", backend=backend)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


def test_a_matplotlibrc_that_is_not_text_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\xff")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    program = DRAW.format(before="from mlx_amort.errors import UserError\ntry:", backend="Agg").replace(
        "try:\nfrom mlx_amort import plots",
        "try:\n    from mlx_amort import plots\nexcept UserError as error:\n    raise SystemExit(f'told: {error}')",
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.stderr.endswith("told: ./matplotlibrc: is not text in UTF-8; correct or delete it\n")
    # One that MATPLOTLIBRC names is not read at all.
    elsewhere = {**environment, "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    (tmp_path / "other").mkdir()
    program = DRAW.format(before="", backend="Agg")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "other", env=elsewhere, check=True)


def test_settings_of_a_program_that_draws_too_are_set_aside_and_come_back(tmp_path: Path) -> None:
    own: dict[Any, Any] = {"text.usetex": True, "lines.linewidth": 9.0, "font.family": ["nowhere"]}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        plots.loss_and_rate([step_row(step) for step in range(1, 9)], tmp_path / "x.png")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "name", ["a$5_$b", "$x", "実行の名前", "e\x1b[31mé", "ไทย", "x" * 5000, "a\nb", "\U0001d54f\udcff"]
)
def test_a_name_is_drawn_as_written_or_replaced_without_a_warning(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.compare([plots.RunCurve(name, [1, 2], [3.0, 2.0])], tmp_path / "x.png", 2.0)
        plots.loss_and_rate([step_row(1)], tmp_path / "y.png", title=plots.describe_origin(name, name))
    shown = drawable(name)
    assert shown.isprintable() and len(shown) <= LONGEST_NAME


def test_what_is_drawn_of_a_name() -> None:
    assert drawable("a$5_$b") == "a$5_$b" and drawable("é\x1b[0m") == "é\\x1b[0m"
    assert drawable("a\nb") == "a\\nb"
    assert drawable("x" * 99).count("x") == LONGEST_NAME - 4 and "..." in drawable("x" * 99)


def test_the_suffix_names_the_kind_of_picture_and_the_name_stays_as_given(tmp_path: Path) -> None:
    runs = [plots.RunCurve("a", [1, 2], [3.0, 2.0])]
    for name, start in (("x.svg", b"<?xml"), ("plain", PNG), ("x.PDF", b"%PDF")):
        plots.compare(runs, tmp_path / name, 2.0)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match="not supported"):
        plots.compare(runs, tmp_path / "x.words", 2.0)
    assert not (tmp_path / "x.words").exists()
