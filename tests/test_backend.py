"""The BLAS that is loaded before mlx, how its idle threads behave, and what Metal keeps wired."""

from __future__ import annotations

import os
import subprocess
import sys

import mlx.core as mx
import pytest

from mlx_amort import backend
from mlx_amort.backend import load_blas, wired_working_set

PROGRAM = """
import os
from mlx_amort.backend import load_blas
load_blas()
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux loads OpenBLAS: nothing to see elsewhere")
@pytest.mark.parametrize(("given", "expected"), [(None, "16"), ("20", "20")])
def test_idle_blas_threads_sleep_soon_unless_told_otherwise(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    if given is not None:
        environment["OPENBLAS_THREAD_TIMEOUT"] = given
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == expected


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

    monkeypatch.setattr(backend, "_backend", lambda: name)
    monkeypatch.setattr(mx, "set_wired_limit", set_wired_limit)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12_000})
    with pytest.raises(KeyboardInterrupt), wired_working_set():
        assert limits == told[:1]
        raise KeyboardInterrupt
    assert limits == told
