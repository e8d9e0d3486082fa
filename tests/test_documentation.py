"""What is promised is there: every verb that help lists, every file that a page links to."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from mlx_amort.cli import VERBS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
MAP = ROOT / "docs" / "architecture.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_can_be_loaded(verb: str) -> None:
    assert isinstance(importlib.import_module(VERBS[verb].module).command, click.Command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    inside = [link for link in links if link and "://" not in link]
    assert not [link for link in inside if not (page.parent / link).exists()]


def modules_on_the_map() -> list[str]:
    """The modules of the tree in docs/architecture.md: two spaces deeper is a folder further in."""
    (tree,) = re.findall(r"```\n(mlx_amort/\n.*?)```", MAP.read_text(encoding="utf-8"), re.DOTALL)
    folders: list[str] = []
    found = []
    for line in tree.splitlines():
        folders = folders[: (len(line) - len(line.lstrip())) // 2]
        name = line.split()[0]
        if name.endswith("/"):
            folders.append(name)
        found += ["".join(folders) + word for word in line.split() if word.endswith(".py")]
    return found


def test_the_map_has_every_module_and_no_other() -> None:
    modules = {str(path.relative_to(ROOT).as_posix()) for path in ROOT.glob("mlx_amort/**/*.py")}
    found = modules_on_the_map()
    assert len(found) == len(set(found))
    assert set(found) == {name for name in modules if not name.endswith("__init__.py")}
