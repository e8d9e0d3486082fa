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
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_can_be_loaded(verb: str) -> None:
    assert isinstance(importlib.import_module(VERBS[verb].module).command, click.Command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    inside = [link for link in links if link and "://" not in link]
    assert not [link for link in inside if not (page.parent / link).exists()]
