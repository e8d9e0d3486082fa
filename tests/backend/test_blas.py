"""The fast BLAS that is put before MLX's own: from where, how it is kept, its threads, what is said without one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mlx_amort.backend import blas

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has its BLAS replaced: nothing to see"
)

SETTINGS = (
    "OPENBLAS_THREAD_TIMEOUT",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "LD_PRELOAD",
    "MLX_AMORT_CACHE",
)
PRODUCT = """
import os
from mlx_amort.backend import load_blas
load_blas()
import mlx.core as mx, numpy as np
from mlx_amort.backend.blas import blas_name
a, b = np.arange(35, dtype=np.float32).reshape(5, 7), np.arange(21, dtype=np.float32).reshape(7, 3)
assert np.array_equal(np.array(mx.array(a) @ mx.array(b)), a @ b)
print(blas_name())
"""


def told(cache: Path, program: str = PRODUCT, **settings: str) -> str:
    """What a process of its own prints, with a cache folder of its own and only these settings."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment |= {"XDG_CACHE_HOME": str(cache), **settings}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "mlx-amort" / "blas").iterdir())


def test_the_wheel_s_blas_is_led_to_once_and_found_again(tmp_path: Path) -> None:
    assert told(tmp_path).startswith("OpenBLAS 0.3.") and len(kept(tmp_path)) == 1
    built_at = kept(tmp_path)[0].stat().st_mtime_ns
    assert " from pip (" in told(tmp_path)
    assert [path.stat().st_mtime_ns for path in kept(tmp_path)] == [built_at]


@pytest.mark.parametrize("kept_bytes", [0, 100, 4096, -1])
def test_a_damaged_library_is_built_anew(tmp_path: Path, kept_bytes: int) -> None:
    told(tmp_path)
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept_bytes] if kept_bytes >= 0 else whole[:600] + bytes(64) + whole[664:])
    assert " from pip (" in told(tmp_path)
    assert [path.read_bytes() for path in kept(tmp_path)] == [whole]


def test_processes_that_start_at_once_build_one_library(tmp_path: Path) -> None:
    printed: list[str] = []
    threads = [threading.Thread(target=lambda: printed.append(told(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(printed) == 4 and all(" from pip (" in name for name in printed)
    assert len(kept(tmp_path)) == 1


def test_threads_follow_the_settings_and_the_affinity(tmp_path: Path) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        assert told(tmp_path, **{name: "1"}).endswith("(1 thread)")
    pinned = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})" + PRODUCT
    assert told(tmp_path, pinned).endswith("(1 thread)")


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 3), ("150000 100000", 2), ("50000 100000", 1), ("nonsense", 3)]
)
def test_a_container_s_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(blas, "_CPU_QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert blas.usable_cores() == expected


@pytest.mark.parametrize(("given", "expected"), [(None, "16"), ("20", "20")])
def test_idle_blas_threads_sleep_soon_unless_told_otherwise(
    tmp_path: Path, given: str | None, expected: str
) -> None:
    program = PRODUCT + "print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    settings = {} if given is None else {"OPENBLAS_THREAD_TIMEOUT": given}
    assert told(tmp_path, program, **settings).splitlines()[-1] == expected


def test_without_a_compiler_what_to_install_is_said(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    name = told(tmp_path, PATH=str(tmp_path / "nothing"))
    assert name == "reference BLAS (slow: a faster one needs a C++ compiler; install g++)"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    (tmp_path / "g++").chmod(0o755)
    name = told(tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert "cannot be built" in name and "no space left" in name and "\n" not in name


def test_without_the_wheel_what_to_install_is_said(tmp_path: Path) -> None:
    hidden = "import importlib.util as u; found = u.find_spec\n"
    hidden += "u.find_spec = lambda name, *rest: None if name.startswith('scipy_openblas') else found(name, *rest)\n"
    without_system = "from mlx_amort.backend import blas; blas._SYSTEM_NAMES = ()\n"
    name = told(tmp_path, hidden + without_system + PRODUCT)
    assert name == "reference BLAS (slow: pip install scipy-openblas32)"


@pytest.mark.parametrize("home", ["", "/dev/null/home"])
def test_without_a_cache_folder_a_temporary_one_serves(tmp_path: Path, home: str) -> None:
    assert " from pip (" in told(Path("not absolute"), HOME=home, TMPDIR=str(tmp_path))
    (folder,) = tmp_path.glob("mlx-amort-*")
    assert folder.stat().st_mode & 0o077 == 0 and list(folder.glob("blas/*.so"))


def test_a_temporary_folder_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    planted = tmp_path / f"mlx-amort-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    assert " from pip (" in told(Path("not absolute"), HOME="/dev/null/home", TMPDIR=str(tmp_path))
    assert not list(planted.iterdir())


def test_numpy_and_mlx_multiply_side_by_side(tmp_path: Path) -> None:
    program = (
        PRODUCT
        + """
wide = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
for _ in range(20):
    ours, theirs = np.array(mx.array(wide) @ mx.array(wide)), wide @ wide
    assert np.abs(ours - theirs).max() < 1e-3
"""
    )
    assert " from pip (" in told(tmp_path, program)


def test_a_library_loaded_after_mlx_is_not_reported(tmp_path: Path) -> None:
    late = PRODUCT.replace("from mlx_amort", "import mlx.core\nfrom mlx_amort", 1)
    assert told(tmp_path, late) == "reference BLAS (slow: mlx was loaded before a faster one)"
