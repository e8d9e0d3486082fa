"""Every parameter has one owner, and decay pulls only where it should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlx_amort.config.model import ModelConfig, Trunk
from mlx_amort.optim.partition import has_weight_decay, owners

TRUNKS: list[Trunk] = ["hybrid", "dense", "recurrent", "patched"]
MATRICES = {"qkv", "gate", "proj", "up", "down", "decay_w"}


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_parameter_has_exactly_one_owner(trunk: Trunk, optimizer: str) -> None:
    shapes = ModelConfig(trunk=trunk, layers=2, hidden=32, ffn=64, heads=4, seq=32).parameter_shapes()
    owner_of = owners(shapes, optimizer)
    assert list(owner_of) == list(shapes)
    for name, owner in owner_of.items():
        is_matrix = name.split(".")[-1] in MATRICES
        assert owner == ("muon" if optimizer == "muon" and is_matrix else "adamw"), name


def test_muon_takes_nothing_but_matrices() -> None:
    with pytest.raises(ValueError, match="up has shape"):
        owners({"blocks.0.up": (4, 4, 4)}, "muon")


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="lion"):
        owners({"tok": (4, 4)}, "lion")


def test_decay_spares_norms_biases_and_positions() -> None:
    shapes = ModelConfig(trunk="hybrid", layers=2, hidden=32, ffn=64, heads=4, seq=32).parameter_shapes()
    spared = {name.split(".")[-1] for name in shapes if not has_weight_decay(name)}
    assert spared == {"n1", "n2", "n_out", "o_norm", "decay_b", "pos", "slot"}


def test_needs_no_mlx() -> None:
    imports = "import sys, mlx_amort.optim.partition, mlx_amort.optim.schedules"
    code = f"{imports}; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
