"""The machine under a run: which device, how much memory, what its record says.

Nothing here imports mlx before it is asked about the device.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_amort.backend.blas import blas_name, usable_cores
from mlx_amort.ops.constants import Backend

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def describe_machine() -> dict[str, Any]:
    """What a run's record says about where it ran, in plain values.

    Units: `memory_bytes` is what the process may use: physical memory, or less in a container that limits it;
    `device_memory_bytes` what the accelerator has for it (`_device_memory_bytes`), None on the CPU.
    """
    # Imported here: mlx after load_blas had its chance, metadata because it is slow and --help needs none.
    from importlib import metadata

    import mlx.core as mx

    backend = _backend()
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "device_memory_bytes": _device_memory_bytes(mx.device_info(), backend),
        "backend": backend,
        "device_name": str(mx.device_info().get("device_name", "unknown")),
        "blas": "cuBLAS" if backend == "cuda" else blas_name(),
        "mlx": metadata.version("mlx"),
        "python": platform.python_version(),
    }


@contextmanager
def wired_working_set() -> Iterator[None]:
    """On Metal, keep what a run uses wired up to the working set that the system recommends, and put it back."""
    import mlx.core as mx

    working_set = _device_memory_bytes(mx.device_info(), "metal") if _backend() == "metal" else None
    if working_set is None:
        yield
        return
    before = mx.set_wired_limit(working_set)
    try:
        yield
    finally:
        mx.set_wired_limit(before)


def _backend() -> Backend:
    from mlx_amort.ops.paths import device_path

    return device_path()


def _device_memory_bytes(info: Mapping[str, str | int], backend: Backend) -> int | None:
    """Metal: the working set that the system recommends; CUDA: what is free now, else all; CPU: None.

    Keys as MLX's device_info has them; a version that lacks them all gives None.
    """
    keys: dict[Backend, tuple[str, ...]] = {
        "cpu": (),
        "metal": ("max_recommended_working_set_size",),
        "cuda": ("free_memory", "total_memory"),
    }
    found = (info.get(key) for key in keys[backend])
    return next((int(value) for value in found if value), None)


def _processor() -> str:
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        return answer.stdout.strip() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _memory_bytes() -> int:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _CGROUP_LIMITS:
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            memory_bytes = min(memory_bytes, int(text))
    return memory_bytes


def set_cpu_cache_limit() -> int | None:
    """On the CPU backend, let MLX keep freed buffers up to a sixteenth of the memory; returns the limit in bytes.

    MLX's own limit there is 32 MiB, so every larger temporary is fetched from the system and its pages are
    touched anew: an elementwise pass over 32 MB takes eight times as long (docs/decisions.md). Elsewhere
    MLX's limit stays and None is returned. The cache is not part of the peak that MLX reports.
    """
    import mlx.core as mx

    if mx.default_device() != mx.Device(mx.cpu):
        return None
    limit = max(512 << 20, _memory_bytes() // 16)
    mx.set_cache_limit(limit)
    return limit
