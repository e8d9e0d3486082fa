"""The soak in short, and that each of its checks can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.tiny import start, tiny_config, write_text
from tools.soak import Failed, Held, _check_flat, _check_log, _check_states, soak


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path: Path) -> None:
    report = soak(tmp_path, steps=240, kill_every=80, save_every=10)
    assert "killed       2 times; final state equal bit for bit" in "\n".join(report)


def test_a_difference_of_state_log_or_memory_is_told(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    for seed, name in ((0, "one"), (1, "other")):
        start(tiny_config(text, steps=2, seed=seed, sample_bytes=0), tmp_path / name)
    _check_states(tmp_path / "one", tmp_path / "one", 2)
    with pytest.raises(Failed, match="differs from the undisturbed"):
        _check_states(tmp_path / "one", tmp_path / "other", 2)
    _check_log(tmp_path / "one", 2)
    with pytest.raises(Failed, match="every step once"):
        _check_log(tmp_path / "one", 3)
    flat = [Held(step, 100_000_000, 4) for step in range(100)]
    assert "4 open descriptors" in _check_flat(flat, 100)
    for late in (Held(90, 102_000_000, 4), Held(90, 100_000_000, 5)):
        with pytest.raises(Failed, match="resident"):
            _check_flat(flat[:75] + [late] * 25, 100)
