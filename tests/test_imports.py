"""The order of the rooms: who may import whom, read from the source, and what `--help` loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mlx_amort"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Lower rooms first; a module imports its own room and those below it.
ROOMS = (
    ("errors",),
    ("amounts", "files", "streams"),
    ("ops",),
    ("config", "backend"),
    ("command_line",),
    ("model", "optim", "data", "plots"),
    ("train", "evaluate", "generate", "compare"),
    ("cost",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
# Rooms of one level that may still see each other; elsewhere neighbours on a level are strangers.
FRIENDS = {
    ("train", "evaluate"),
    ("train", "generate"),
    ("evaluate", "train"),
    ("generate", "train"),
    ("compare", "train"),
}
NUMPY_ONLY = ("time", "memory")


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(module: Path) -> set[str]:
    """Dotted names of all modules imported anywhere in a file, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_modules(names: set[str]) -> set[Path]:
    candidates = {PACKAGE.parent / Path(*name.split(".")) for name in names if name.startswith("mlx_amort")}
    return {
        path
        for candidate in candidates
        for path in (candidate.with_suffix(".py"), candidate / "__init__.py")
        if path.exists()
    }


def reachable(module: Path) -> set[str]:
    """Every module name that importing a file may load, through our own modules."""
    names: set[str] = set()
    waiting, seen = [module], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        found = imports_of(current)
        names |= found
        waiting += own_modules(found)
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_point_one_way(module: Path) -> None:
    room = room_of(module)
    if room in ("__init__", "__main__"):
        return
    assert room in LEVEL, f"{room} is a room nobody has placed"
    for name in imports_of(module):
        parts = name.split(".")
        other = parts[1] if parts[0] == "mlx_amort" and len(parts) > 1 else room
        if other == room or other not in LEVEL:
            continue
        assert LEVEL[other] < LEVEL[room] or (room, other) in FRIENDS, f"{room} imports {other}"


def test_ops_know_nothing_of_configurations() -> None:
    for module in PACKAGE.glob("ops/**/*.py"):
        assert not {name for name in imports_of(module) if name.startswith("mlx_amort.config.values")}, module


def test_only_cli_imports_click_and_only_plots_matplotlib() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in imports_of(module)}
        assert "click" not in roots or room_of(module) == "cli", module
        assert "matplotlib" not in roots or room_of(module) == "plots", module


@pytest.mark.parametrize("room", NUMPY_ONLY)
def test_the_arithmetic_of_costs_needs_only_numpy(room: str) -> None:
    modules = list((PACKAGE / "cost" / room).glob("*.py"))
    assert len(modules) > 1
    for module in modules:
        loaded = {found.split(".")[0] for found in reachable(module)}
        assert not loaded & {"mlx", "click", "matplotlib"}, module


@pytest.mark.parametrize("room", ["data", "config", "errors"])
def test_rooms_without_mlx(room: str) -> None:
    for module in (found for found in MODULES if room_of(found) == room):
        assert "mlx" not in {name.split(".")[0] for name in reachable(module)}, module


@pytest.mark.parametrize("arguments", [["--help"], ["presets"], ["presets", "demo", "--owners"]])
def test_help_and_presets_load_neither_mlx_nor_matplotlib(arguments: list[str]) -> None:
    program = f"""
import sys
from mlx_amort.cli import main
try:
    main({arguments!r})
except SystemExit as ending:
    assert ending.code == 0, ending.code
loaded = {{"mlx", "matplotlib"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=PACKAGE.parent)
