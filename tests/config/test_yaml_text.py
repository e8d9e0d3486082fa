"""Files that are no configuration are refused by name, in one line."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mlx_amort.config import yaml_text
from mlx_amort.config.reading import (
    resolve,
)
from mlx_amort.errors import UserError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step:\n  batch: 3\n  batch: 4\n", "'batch' is given twice"),
        ("step: 3\n", "'step' in .*: is a section"),
        ("- a\n", "does not hold sections"),
        ("step: [\n", "is not valid YAML"),
        ("steps:\n  batch: 3\n", "no such section; did you mean 'step'"),
        ("step:\n  batch: true\n", "must be a whole number"),
        ("preset: [demo]\n", "must be text or null"),
        ("data:\n  sources: [{path: a, wieght: 2}]\n", "no such key; did you mean 'weight'"),
        ("data:\n  sources: [{path: a, given: b}]\n", "no such key"),
        ("data:\n  sources: [{weight: 2}]\n", "must be PATH"),
        ("data:\n  sources: {path: a}\n", "must be a list"),
        ("run:\n  sample_prompt: null\n", "must be text"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as refusal:
        resolve(file=file)
    assert "mine.yaml" in str(refusal.value)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"missing\.yaml: No such file"):
        resolve(file="missing.yaml")


def test_a_configuration_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(UserError, match=f"{path}: is a pipe, a socket or a device; name a regular"):
                resolve(file=path)
    with pytest.raises(UserError, match="is a folder; name a file in it"):
        resolve(file=tmp_path)


def test_a_configuration_is_read_to_its_largest_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_text, "LARGEST_YAML_BYTES", 20)
    file = tmp_path / "mine.yaml"
    file.write_text("step: {batch: 3}\n###", encoding="utf-8")
    assert resolve(file=file).step.batch == 3
    file.write_text("step: {batch: 3}\n####", encoding="utf-8")
    with pytest.raises(UserError, match="is longer than the 20 bytes"):
        resolve(file=file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 5000, "is nested too deep; write it as"),
        ("run: {steps: !!timestamp 2024-13-45}", "is not valid YAML (month must be in 1..12); write it as"),
        (
            "model: {layers: [1, [2, 3]]}",
            "model.layers=(list) in FILE: must be a whole number; write it as 8",
        ),
        ("preset: [a]", "preset=(list) in FILE: must be text or null; write preset: demo"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as refusal:
        resolve(file=path)
    assert said in str(refusal.value).replace(str(path), "FILE")
