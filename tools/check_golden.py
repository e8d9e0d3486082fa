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
import lzma
import struct
import sys
import tokenize
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
from mlx_amort.config.model import ModelConfig
from mlx_amort.errors import UserError

TOLERANCE = 1e-3
NEGLIGIBLE_SHARE = 1e-6
LARGEST_SIZE = 2**20
LARGEST_CASE_BYTES = 2**34
# What numpy and zipfile raise for an archive that is cut, damaged, encrypted or made up.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    tokenize.TokenError,
)
_MAKE = "write cases as `python -m tests.reference.make_golden` does"
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
    """Raises UserError when the file is missing, damaged or not a golden case; nothing is built before."""
    arrays = _read_arrays(path)
    missing = [key for key in ("config", "trunk", "tokens", "loss_nats", "logits") if key not in arrays]
    if "param/tok" not in arrays:
        missing.append("param/tok")
    if missing:
        raise UserError(str(path), f"not a golden case: it lacks {', '.join(missing)}", _MAKE)
    _check_kinds(path, arrays)
    sizes = _read_sizes(path, arrays["config"])
    parameters = {key[len("param/") :]: value for key, value in arrays.items() if key.startswith("param/")}
    try:
        config = ModelConfig(
            trunk=_read_text(path, arrays, "trunk", ""),  # type: ignore[arg-type]
            vocabulary=len(parameters["tok"]),
            patch_stride=int(arrays.get("patch_stride", 4)),
            boundary_rule=_read_text(path, arrays, "boundary_rule", "every"),  # type: ignore[arg-type]
            layers=sizes["layers"],
            hidden=sizes["hidden"],
            ffn=sizes["ffn"],
            heads=sizes["heads"],
            seq=sizes["seq"],
        )
    except UserError as error:
        raise UserError(str(path), f"{error.what} {error.why}", error.todo) from error
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
    if case.tokens.min() < 0 or case.tokens.max() >= config.vocabulary:
        why = f"tokens reach from {case.tokens.min()} to {case.tokens.max()}"
        raise UserError(str(path), why, f"keep them between 0 and {config.vocabulary - 1}")
    return case


def compute(case: Case) -> dict[str, Array]:
    """What the case holds as reference, computed by the model in float32."""
    import mlx.core as mx

    from mlx_amort.model.byte_lm import ByteLM

    model = ByteLM(case.config, precision="fp32")
    # Too large for float32 is infinite there, and fails.
    with np.errstate(over="ignore"):
        weights = {name: mx.array(value.astype(np.float32)) for name, value in case.parameters.items()}
    tokens = mx.array(case.tokens.astype(np.int32))

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
        # What overflows or is not a number fails below; numpy need not say so too.
        with np.errstate(all="ignore"):
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
        # Opening a pipe would wait for its writer for ever.
        if path.exists() and not path.is_file():
            raise UserError(str(path), "is not a regular file", _MAKE)
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(str(path), "holds a single array, not an .npz archive", _MAKE)
            assert archive.zip is not None
            unpacked_bytes = sum(member.file_size for member in archive.zip.infolist())
            if unpacked_bytes > LARGEST_CASE_BYTES:
                why = f"unpacks to {unpacked_bytes:,} bytes, of which {LARGEST_CASE_BYTES:,} are allowed"
                raise UserError(str(path), why, "make a smaller case")
            arrays = {key: archive[key] for key in archive.files}
    except OSError as error:
        raise UserError(str(path), error.strerror or "cannot be read", "name a golden file") from error
    except _UNREADABLE as error:
        raise UserError(str(path), "not a readable .npz archive", _MAKE) from error
    # A member that is not an array comes as bytes.
    return {key: np.asarray(value) for key, value in arrays.items()}


def _check_kinds(path: Path, arrays: Mapping[str, Array]) -> None:
    """Refuse an array that does not hold the kind of numbers, or text, that its key stands for."""
    for key, array in arrays.items():
        if key.startswith(("param/", "grad/", "state/")) or key == "logits":
            kinds, wanted = "f", "real floating-point numbers"
        elif key in ("config", "loss_nats"):
            kinds, wanted = "iuf", "real numbers"
        elif key in ("tokens", "patch_stride"):
            kinds, wanted = "iu", "whole numbers"
        else:
            continue
        if array.dtype.kind not in kinds:
            raise UserError(str(path), f"{key} holds {array.dtype}, not {wanted}", _MAKE)
    for key in ("loss_nats", "patch_stride"):
        if key in arrays and arrays[key].shape != ():
            raise UserError(str(path), f"{key} has shape {arrays[key].shape}, not that of one number", _MAKE)
    if arrays["param/tok"].ndim != 2:
        raise UserError(str(path), f"param/tok has shape {arrays['param/tok'].shape}, not a matrix's", _MAKE)


def _read_sizes(path: Path, sizes: Array) -> dict[str, int]:
    names = ", ".join(CONFIG_KEYS)
    if sizes.shape != (len(CONFIG_KEYS),):
        raise UserError(str(path), f"config is not the seven sizes {names}", _MAKE)
    for key, size in zip(CONFIG_KEYS, sizes.tolist(), strict=True):
        # NaN is refused by the comparison.
        if not 1 <= size <= LARGEST_SIZE or size != int(size):
            why = f"config says {key}={size:g}, not a whole number from 1 to {LARGEST_SIZE:,}"
            raise UserError(str(path), why, _MAKE)
    return {key: int(size) for key, size in zip(CONFIG_KEYS, sizes.tolist(), strict=True)}


def _read_text(path: Path, arrays: Mapping[str, Array], key: str, default: str) -> str:
    array = arrays.get(key, np.array(default))
    if array.dtype.kind != "U" or array.shape != () or not str(array).isprintable():
        raise UserError(str(path), f"{key} is not one word of text", _MAKE)
    return str(array)


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
            why = f"{key} {has} where the {config.trunk} trunk of this config {wants}"
            raise UserError(str(path), why, _MAKE)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


if __name__ == "__main__":
    sys.exit(main())
