"""What Metal keeps wired, and what is set before mlx is loaded."""

from __future__ import annotations

import os

import mlx.core as mx
import pytest

from mlx_amort.backend import load_blas, machine, wired_working_set


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("1", "1")])
def test_float32_products_are_float32_on_gpus_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if given is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", given)
    load_blas()
    assert os.environ["MLX_ENABLE_TF32"] == expected


@pytest.mark.parametrize(("name", "told"), [("metal", [12_000, 7]), ("cpu", []), ("cuda", [])])
def test_on_metal_the_wired_limit_is_the_recommended_working_set_and_put_back(
    name: str, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def set_wired_limit(limit: int) -> int:
        limits.append(limit)
        return 7

    monkeypatch.setattr(machine, "_backend", lambda: name)
    monkeypatch.setattr(mx, "set_wired_limit", set_wired_limit)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12_000})
    with pytest.raises(KeyboardInterrupt), wired_working_set():
        assert limits == told[:1]
        raise KeyboardInterrupt
    assert limits == told
