"""Where MLX's CPU backend keeps the kernels that it compiles, and how they are compiled; no mlx.

MLX writes each fused kernel as C++ into TMPDIR/mlx/VERSION/cpu, has `g++` of the PATH compile it, and loads it. The
temporary folder is emptied at the next start of many machines and shared with others, so kernels are kept in the
user's cache folder instead, unless the user set TMPDIR. Three quarters of a kernel's time are one header that all
include: a script before g++ on the PATH has it compiled once (compiler.sh).
Python's own temporary files and the compiler's stay where they were.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlx_amort.backend.cache_folder import built_folder
from mlx_amort.errors import UserError

# The folder that was made TMPDIR, and what it was before: for the compiler, and for processes that this one starts.
_MARK = "MLX_AMORT_TMPDIR"
# In the order in which C++ asks for the temporary folder.
_TMPDIR_SETTINGS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
_SCRIPT = Path(__file__).with_name("compiler.sh")
_COMPILERS_FOLDER = "mlx-amort-compiler"
_PASSING_NAMES = ("tmp_", "building-")
_ABANDONED_AFTER_S = 3600
_LOOK_EVERY_S = 0.2
# ELF64, little-endian: where the table of sections begins, its entries' size and number; it stands last in the file.
_ELF_HEADER_BYTES = 64


def keep_kernels() -> None:
    """Have MLX keep its kernels in the user's cache folder, and compile them by a header that is compiled once.

    Must run before a kernel is compiled. Kernels that a kill or a full disk cut short are deleted: loading one would
    end the process. Elsewhere than on Linux nothing is done.
    """
    if sys.platform != "linux":
        return
    outer = _temporary_folder()
    if outer is None:
        return
    kept, _, inherited = os.environ.get(_MARK, "").partition(os.pathsep)
    if kept and os.environ.get("TMPDIR") == kept:
        tempfile.tempdir = outer = inherited
    elif _told_folder() is None:
        os.environ["TMPDIR"] = str(_made_kernels_folder())
    os.environ[_MARK] = f"{os.environ.get('TMPDIR', outer)}{os.pathsep}{outer}"
    folder = kernels_folder()
    if folder is not None:
        delete_damaged(folder)
    _put_before_compiler()


def kernels_folder() -> Path | None:
    """The folder that holds mlx/VERSION/cpu; None where MLX compiles no kernels for the CPU, or has no folder."""
    if sys.platform != "linux":
        return None
    outer = _temporary_folder()
    return _told_folder() or (None if outer is None else Path(outer))


def _temporary_folder() -> str | None:
    """Where Python puts temporary files; None where no such folder can be written: the disk is full."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def has_compiler() -> bool:
    """Whether MLX finds its C++ compiler; without one it runs every operation on its own."""
    return sys.platform != "linux" or shutil.which("g++") is not None


def loaded_kernels() -> int:
    """How many compiled kernels this process has loaded; 0 where MLX compiles none for the CPU."""
    folder = kernels_folder()
    if folder is None:
        return 0
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    # The system shows where links lead.
    resolved = folder.resolve()
    mapped = {line.partition("/")[2] for line in lines}
    return sum(path.startswith(f"{resolved}/mlx/"[1:]) for path in mapped)


@contextmanager
def watch_compiling(tell: Callable[[int], None]) -> Iterator[None]:
    """While entered, call `tell`, from another thread, with the number of kernels loaded, when it has grown."""
    is_over = threading.Event()

    def watch() -> None:
        told = loaded_kernels()
        while not is_over.wait(_LOOK_EVERY_S):
            if (loaded := loaded_kernels()) > told:
                told = loaded
                tell(loaded)

    thread = threading.Thread(target=watch, name="compiled kernels", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def delete_damaged(folder: Path) -> list[Path]:
    """Delete kernels that are shorter than they say, and what compilers left an hour ago; returns the former.

    Only what changed since the last time is looked at.
    """
    damaged = []
    for cpu in folder.glob("mlx/*/cpu"):
        stamp = cpu / ".looked-through"
        try:
            looked_at_ns, now_ns = _changed_at_ns(stamp), time.time_ns()
            stamp.touch()
            for entry in os.scandir(cpu):
                path, changed_at_ns = Path(entry.path), entry.stat().st_mtime_ns
                if entry.name.startswith(_PASSING_NAMES):
                    if now_ns - changed_at_ns > _ABANDONED_AFTER_S * 10**9:
                        path.unlink(missing_ok=True)
                elif entry.name.endswith(".so") and changed_at_ns >= looked_at_ns and not _is_whole(path):
                    path.unlink(missing_ok=True)
                    damaged.append(path)
        except OSError:
            # Another user's folder, or emptied by another process meanwhile: MLX tells what it cannot use.
            continue
    return damaged


def explain(error: RuntimeError) -> UserError | None:
    """What to do about an error of MLX's while it compiled or loaded a kernel; None for any other error."""
    text = " ".join(str(error).split())
    if "Could not load C++ shared library" in text or "Failed to load compiled function" in text:
        why, todo = "a compiled kernel cannot be loaded", "delete that folder and start again"
    elif "Failed to compile function" in text or "Failed to execute command" in text:
        why, todo = "a kernel cannot be compiled", "see that the folder can be written and g++ works"
    elif "filesystem error" in text or "filesystem_error" in text:
        why, todo = "cannot hold compiled kernels", "set TMPDIR to a folder that can be written"
    else:
        return None
    return UserError(f"{kernels_folder()}/mlx", f"{why} ({text[-200:]})", todo)


def _told_folder() -> Path | None:
    """The temporary folder that the environment names, as MLX finds it, if there is such a folder to write into."""
    told = next((os.environ[name] for name in _TMPDIR_SETTINGS if name in os.environ), None)
    is_usable = told is not None and os.path.isdir(told) and os.access(told, os.W_OK | os.X_OK)
    return Path(told) if told is not None and is_usable else None


def _made_kernels_folder() -> Path:
    """By what a kernel of one machine may not have on another that shares the folder: processor, C library."""
    try:
        flags = set(
            Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2].split("\n", 1)[0].split()
        )
    except OSError:
        flags = set()
    wide = "-avx2" if {"avx2", "fma", "f16c"} <= flags else ""
    folder = built_folder() / "kernels" / f"{platform.machine()}{wide}-{''.join(platform.libc_ver())}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _put_before_compiler() -> None:
    """Put compiler.sh, as `g++`, first on the PATH, if there is a g++ and it does not stand there already."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if any(_is_ours(Path(entry)) for entry in entries):
        return
    compiler, mlx = shutil.which("g++"), importlib.util.find_spec("mlx")
    if compiler is None or mlx is None or not mlx.submodule_search_locations:
        return
    # A header that was compiled for another compiler, or from another MLX, must not be taken.
    library = Path(mlx.submodule_search_locations[0], "lib", "libmlx.so")
    made_of = [(str(path), path.stat()) for path in (Path(compiler), library) if path.exists()]
    identity = [(name, found.st_size, found.st_mtime_ns) for name, found in made_of]
    text = _SCRIPT.read_text(encoding="utf-8")
    key = hashlib.sha256(f"{text}{identity}".encode()).hexdigest()[:16]
    folder = built_folder() / _COMPILERS_FOLDER / key
    script = folder / "g++"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = text.replace("@COMPILER@", shlex.quote(compiler))
        text = text.replace("@HEADERS@", shlex.quote(str(folder)))
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, script)
    os.environ["PATH"] = os.pathsep.join([str(folder), *entries])


def _is_ours(folder: Path) -> bool:
    return folder.parent.name == _COMPILERS_FOLDER and (folder / "g++").exists()


def _changed_at_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _is_whole(path: Path) -> bool:
    """Whether an ELF library is as long as its header says, which no library that was cut short is."""
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER_BYTES)
    if len(header) < _ELF_HEADER_BYTES or not header.startswith(b"\x7fELF"):
        return False
    table_at = int.from_bytes(header[40:48], "little")
    entry_bytes, entries = int.from_bytes(header[58:60], "little"), int.from_bytes(header[60:62], "little")
    return path.stat().st_size >= table_at + entry_bytes * entries
