"""Hold the model to golden cases: `python tools/check_golden.py FILE...`

A case is an .npz file with `config` (hidden, layers, ffn, heads, seq, batch, chunks), `trunk`, `tokens`
[B, S·K + 1], `param/NAME`, `loss_nats`, `logits` [B, K, S, V], `grad/NAME` and, for recurrent trunks,
`state/S` and `state/conv` [layers, B, ...]; `patch_stride` (4) and `boundary_rule` (every) are optional.
The model runs the K chunks in float32 with the state carried and the gradient through all of them.

The error of a tensor is RMS(computed - reference) / RMS(reference). A gradient that is zero in the reference,
or so small that float32 rounding of the others drowns it (under 1e-6 of the RMS of all gradients together),
is compared on the scale of all gradients: RMS(computed - reference) / RMS(all reference gradients).
Anything else that is zero in the reference is compared on the scale 1.

Exit status: 0 all pass, 1 an error exceeds 1e-3 or is not a number, 2 a file cannot be read as a case.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# the tree this file lies in is the one it checks, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mlx_amort.backend import load_blas
from mlx_amort.config import ModelConfig
from mlx_amort.errors import UserError

TOLERANCE = 1e-3
NEGLIGIBLE_SHARE = 1e-6
CONFIG_KEYS = ("hidden", "layers", "ffn", "heads", "seq", "batch", "chunks")

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A golden file, its shapes checked."""

    config: ModelConfig
    batch: int
    chunks: int
    tokens: Array
    parameters: dict[str, Array]
    reference: dict[str, Array]  # loss_nats, logits, grad/NAME, state/S, state/conv


def read_case(path: Path) -> Case:
    """Raises UserError when the file is missing, damaged or not a golden case."""
    arrays = _read_arrays(path)
    missing = [key for key in ("config", "trunk", "tokens", "loss_nats", "logits") if key not in arrays]
    if missing:
        raise UserError(str(path), f"not a golden case: it lacks {', '.join(missing)}")
    if arrays["config"].shape != (len(CONFIG_KEYS),):
        raise UserError(str(path), f"config is not the seven sizes {', '.join(CONFIG_KEYS)}")
    sizes = dict(zip(CONFIG_KEYS, (int(size) for size in arrays["config"]), strict=True))
    parameters = {key[len("param/") :]: value for key, value in arrays.items() if key.startswith("param/")}
    if "tok" not in parameters:
        raise UserError(str(path), "not a golden case: it lacks param/tok")
    config = ModelConfig(
        trunk=str(arrays["trunk"]),  # type: ignore[arg-type]
        vocabulary=len(parameters["tok"]),
        patch_stride=int(arrays.get("patch_stride", 4)),
        boundary_rule=str(arrays.get("boundary_rule", "every")),  # type: ignore[arg-type]
        layers=sizes["layers"],
        hidden=sizes["hidden"],
        ffn=sizes["ffn"],
        heads=sizes["heads"],
        seq=sizes["seq"],
    )
    kept = ("loss_nats", "logits", "state/S", "state/conv")
    case = Case(
        config=config,
        batch=sizes["batch"],
        chunks=sizes["chunks"],
        tokens=arrays["tokens"],
        parameters=parameters,
        reference={key: value for key, value in arrays.items() if key in kept or key.startswith("grad/")},
    )
    _check_shapes(path, case)
    return case


def compute(case: Case) -> dict[str, Array]:
    """What the case holds as reference, computed by the model in float32."""
    import mlx.core as mx

    from mlx_amort.model.byte_lm import ByteLM

    model = ByteLM(case.config, precision="fp32")
    weights = {name: mx.array(value.astype(np.float32)) for name, value in case.parameters.items()}
    tokens = mx.array(case.tokens)

    state = model.zero_state(case.batch)
    logits = []
    for start in range(0, case.chunks * case.config.seq, case.config.seq):
        chunk_logits, state = model.forward(weights, tokens[:, start : start + case.config.seq], state)
        logits.append(chunk_logits)

    def loss_of(weights: dict[str, mx.array]) -> tuple[mx.array, Any]:
        return model.loss(weights, tokens, model.zero_state(case.batch))

    (loss, state), gradients = mx.value_and_grad(loss_of)(weights)
    computed = {"loss_nats": np.array(loss), "logits": np.array(mx.stack(logits, axis=1))}
    computed |= {f"grad/{name}": np.array(gradient) for name, gradient in gradients.items()}
    if state:
        computed["state/S"] = np.array(mx.stack([S for S, _ in state]))
        computed["state/conv"] = np.array(mx.stack([conv for _, conv in state]).astype(mx.float32))
    return computed


def measure_errors(computed: Mapping[str, Array], reference: Mapping[str, Array]) -> dict[str, float]:
    """Name -> RMS error over RMS reference, or the divisor of this module's docstring where that is zero."""
    gradients = [value.ravel() for key, value in reference.items() if key.startswith("grad/")]
    gradients_rms = _rms(np.concatenate(gradients))
    errors = {}
    for key, expected in reference.items():
        scale = _rms(expected)
        if key.startswith("grad/"):
            scale = gradients_rms if scale <= NEGLIGIBLE_SHARE * gradients_rms else scale
        errors[key] = _rms(computed[key].astype(np.float64) - expected) / (scale or 1.0)
    return errors


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hold the model to golden cases.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files: list[Path] = parser.parse_args(None if arguments is None else list(arguments)).files
    load_blas()
    status = 0
    for path in files:
        try:
            case = read_case(path)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
            continue
        errors = measure_errors(compute(case), case.reference)
        for key, error_ratio in errors.items():
            print(f"  {key:<24} {error_ratio:9.2e}{'' if error_ratio <= TOLERANCE else '  exceeds'}")
        # not `max`: a NaN must fail
        has_passed = all(error_ratio <= TOLERANCE for error_ratio in errors.values())
        worst = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=np.inf))
        verdict = "PASS" if has_passed else "FAIL"
        print(f"{verdict} {path}: worst {errors[worst]:.2e} at {worst}, allowed {TOLERANCE:.0e}")
        if not has_passed:
            status = max(status, 1)
    return status


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(str(path), "holds a single array, not an .npz archive")
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise UserError(str(path), error.strerror or "cannot be read") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(str(path), "not a readable .npz archive") from error


def _check_shapes(path: Path, case: Case) -> None:
    config, rows = case.config, (case.batch, case.chunks, case.config.seq)
    expected: dict[str, tuple[int, ...]] = {"loss_nats": (), "logits": (*rows, config.vocabulary)}
    expected |= {f"grad/{name}": shape for name, shape in config.parameter_shapes().items()}
    if config.is_recurrent:
        d = config.head_width
        expected["state/S"] = (config.layers, case.batch, config.heads, d, d)
        expected["state/conv"] = (config.layers, case.batch, 3, 3 * config.hidden)
    found = {key: value.shape for key, value in case.reference.items()}
    expected |= {f"param/{name}": shape for name, shape in config.parameter_shapes().items()}
    found |= {f"param/{name}": value.shape for name, value in case.parameters.items()}
    expected["tokens"], found["tokens"] = (case.batch, case.chunks * config.seq + 1), case.tokens.shape
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            has = f"has shape {found[key]}" if key in found else "is missing"
            wants = f"has shape {expected[key]}" if key in expected else "has none"
            raise UserError(str(path), f"{key} {has} where the {config.trunk} trunk of this config {wants}")


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


if __name__ == "__main__":
    sys.exit(main())
