"""The BLAS that multiplies float32 matrices on the CPU: on Linux a fast one is put before MLX's own.

MLX's wheel for Linux multiplies with the reference BLAS, tens of times slower than OpenBLAS. The one float32
product that it calls, cblas_sgemm, is resolved when `mlx.core` is loaded: a library that is in the global namespace
by then takes over. The wheel scipy-openblas32 has the product under another name, so a library of one function,
compiled once into the user's cache folder, passes the call on through a pointer. Nothing here imports mlx.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlx_amort.backend.cache_folder import built_folder

_WHEEL = "scipy_openblas32"
_SYSTEM_NAMES = ("libopenblas.so.0", "libopenblas.so")
_COMPILERS = ("g++", "gcc", "cc", "clang")
_COMPILE_LIMIT_S = 60
_IDLE_SETTING, _IDLE_CYCLES_LOG2 = "OPENBLAS_THREAD_TIMEOUT", "16"
_THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_PASS_ON = """
typedef void product(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
product *mlx_amort_product;
void cblas_sgemm(int order, int is_a_transposed, int is_b_transposed, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    mlx_amort_product(order, is_a_transposed, is_b_transposed, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
"""


@dataclass(frozen=True)
class Blas:
    """A BLAS in this process: its library, what its functions' names begin with, where it is from."""

    library: ctypes.CDLL
    prefix: str
    origin: str

    @property
    def version(self) -> str:
        """Its name and version, as it tells them."""
        asked = getattr(self.library, f"{self.prefix}openblas_get_config")
        asked.restype = ctypes.c_char_p
        told: bytes = asked()
        return " ".join(told.decode().split()[:2])

    @property
    def threads(self) -> int:
        """How many threads share a product."""
        return int(getattr(self.library, f"{self.prefix}openblas_get_num_threads")())

    def set_threads(self, threads: int) -> None:
        """Share products among so many threads."""
        getattr(self.library, f"{self.prefix}openblas_set_num_threads")(threads)


_blas: Blas | None = None
_why_none = ""


def load_fast_blas() -> None:
    """Put OpenBLAS, from pip or the system's, before MLX's own BLAS; must run before `import mlx.core`.

    One that is in the process already (LD_PRELOAD) stays. Without any, `blas_name` says what to install.
    """
    global _blas, _why_none
    # After mlx is loaded its calls are bound, and a library that is merely present would be reported as used.
    if sys.platform != "linux" or "mlx.core" in sys.modules or _is_preloaded():
        return
    # OpenBLAS' idle threads spin for 2^26 cycles by default, on cores that MLX's elementwise kernels need.
    os.environ.setdefault(_IDLE_SETTING, _IDLE_CYCLES_LOG2)
    _blas, _why_none = _from_wheel()
    if _blas is None:
        _blas = _from_system()
    is_told = any(os.environ.get(name) for name in _THREAD_SETTINGS)
    # OpenBLAS heeds these settings and the affinity itself, not a container's quota.
    if _blas is not None and not is_told and _blas.threads > usable_cores():
        _blas.set_threads(usable_cores())


def blas_name() -> str:
    """The BLAS that multiplies float32 matrices on the CPU, its threads, or what would make it faster."""
    if sys.platform == "darwin":
        return "Accelerate"
    if _blas is None and not _is_preloaded():
        return f"reference BLAS (slow: {_why_none or 'mlx was loaded before a faster one'})"
    blas = _blas or _preloaded()
    if blas is None:
        return "a BLAS from the environment"
    threads = blas.threads
    return f"{blas.version} from {blas.origin} ({threads} thread{'s' if threads != 1 else ''})"


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or less where a container's quota says so."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path(_CPU_QUOTA).read_text(encoding="ascii").split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        # No such file, or "max": no quota.
        return cores


def _is_preloaded() -> bool:
    return hasattr(ctypes.CDLL(None), "cblas_sgemm")


def _preloaded() -> Blas | None:
    """The OpenBLAS whose names the whole process sees, if there is one."""
    everything = ctypes.CDLL(None)
    for prefix in ("", "scipy_"):
        if hasattr(everything, f"{prefix}openblas_get_config"):
            return Blas(everything, prefix, "the environment")
    return None


def _from_wheel() -> tuple[Blas | None, str]:
    """The wheel's OpenBLAS with MLX's product led to it, or why that cannot be and what to do."""
    try:
        wheel = importlib.util.find_spec(_WHEEL)
    except (ImportError, ValueError):
        wheel = None
    if wheel is None or wheel.origin is None:
        return None, "pip install scipy-openblas32"
    try:
        # Not global: scipy has functions of the same names, and they are its own.
        library = ctypes.CDLL(str(Path(wheel.origin).parent / "lib" / "libscipy_openblas.so"))
        product = ctypes.cast(library.scipy_cblas_sgemm, ctypes.c_void_p)
    except (OSError, AttributeError) as error:
        return (
            None,
            f"scipy-openblas32 cannot be loaded ({error}); pip install --force-reinstall scipy-openblas32",
        )
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    try:
        passing_on = _open_passing_on(built_folder() / "blas", compiler)
    except OSError as error:
        return None, f"what leads MLX to OpenBLAS cannot be built: {' '.join(str(error).split())}"
    if passing_on is None:
        return None, "a faster one needs a C++ compiler; install g++"
    ctypes.c_void_p.in_dll(passing_on, "mlx_amort_product").value = product.value
    return Blas(library, "scipy_", "pip"), ""


def _from_system() -> Blas | None:
    for name in _SYSTEM_NAMES:
        try:
            return Blas(ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL), "", "the system")
        except OSError:
            continue
    return None


def _open_passing_on(folder: Path, compiler: str | None) -> ctypes.CDLL | None:
    """The library that passes MLX's products on, built if it is not there; None without a compiler.

    Its name holds the digests of what it was built from and of its content, so that a damaged one is noticed.
    Raises: OSError.
    """
    key = hashlib.sha256(f"{_PASS_ON}{platform.machine()}{platform.libc_ver()}".encode()).hexdigest()[:16]
    for path in sorted(folder.glob(f"{key}-*.so")):
        if path.stem == f"{key}-{_digest(path)}":
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        path.unlink(missing_ok=True)
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as building:
        built = _compile(Path(building), compiler)
        # Renamed once it is whole: another process sees all of it or nothing.
        return ctypes.CDLL(str(built.rename(folder / f"{key}-{_digest(built)}.so")), mode=ctypes.RTLD_GLOBAL)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _compile(folder: Path, compiler: str) -> Path:
    """Raises: OSError."""
    source, built = folder / "product.c", folder / "product.so"
    source.write_text(_PASS_ON, encoding="ascii")
    command = [compiler, "-x", "c", "-O2", "-shared", "-fPIC", str(source), "-o", str(built)]
    try:
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_COMPILE_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        raise OSError(f"{compiler} says: {error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from error
    return built
