"""The BLAS that is loaded before mlx, and how its idle threads behave."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mlx_amort.backend import load_blas

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
