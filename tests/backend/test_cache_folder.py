"""The user's cache folder on systems that differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_amort.backend.cache_folder import cache_folder


def test_a_system_without_a_flag_for_folders_that_hold_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python has it where the C library is glibc, and not on macOS.
    monkeypatch.delattr(os, "ST_NOEXEC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mlx-amort"
