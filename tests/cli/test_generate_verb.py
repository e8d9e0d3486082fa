"""`generate` as a shell uses it: prompts from files and pipes, what a terminal gets, JSON, and checkpoints by step."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

import pytest

from mlx_amort.cli import main
from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, RunConfig, StepConfig
from mlx_amort.errors import harmless
from mlx_amort.generate import sample
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.train.checkpoint import save
from mlx_amort.train.state import new_train_state
from tests.cli.terminal import on_terminal

MODEL = ByteLM(ModelConfig(layers=1, hidden=16, ffn=16, heads=2, seq=16))
HOT = ["--bytes", "600", "--temperature", "1"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that has never trained, so it draws every byte; with checkpoints of steps 1 and 2."""
    config = Config(model=MODEL.config, step=StepConfig(precision="fp32"), run=RunConfig(steps=2))
    for step in (1, 2):
        state = new_train_state(MODEL, config.optimizer, seed=step)
        state.step = step
        save(tmp_path / "run", state, config, keeps_older=True)
    return tmp_path / "run"


def written(capture: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[object, bytes, bytes]:
    with pytest.raises(SystemExit) as ending:
        main(["generate", *arguments])
    return ending.value.code, *capture.readouterr()


def drawn(prompt: bytes, count: int = 600, seed: int = 2, top_p: float = 1.0) -> bytes:
    return bytes(sample(MODEL, MODEL.init_weights(seed), prompt, count, 1.0, 0, 0, top_p))


PROMPT = b"\x00a\r\n\xff \xc3\xa9\n"


def test_a_prompt_from_a_file_or_standard_input_is_taken_byte_for_byte(
    run_folder: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prompt").write_bytes(PROMPT)
    for name in (str(tmp_path / "prompt"), "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT)))
        assert written(capfdbinary, str(run_folder), "--prompt-file", name, *HOT) == (0, drawn(PROMPT), b"")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--prompt", "a", "--prompt-file", "b"], b"give one of --prompt and --prompt-file"),
        (["--prompt-file", "nowhere"], b"--prompt-file nowhere: nowhere cannot be read (No such file"),
        (["--prompt-file", "/"], b"cannot be read (Is a directory)"),
        (["--top-p", "0"], b"top-p 0: must be above 0 and at most 1"),
        (["--top-p", "nan"], b"top-p nan: must be above 0"),
        (["--checkpoint", "7"], b"has no checkpoint of that step; name one of 1, 2; "),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], told: bytes, run_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code, out, error = written(capfdbinary, str(run_folder), *arguments)
    assert (code, out) == (2, b"") and told in error and error.count(b"\n") == 1


def test_json_has_the_text_and_the_exact_bytes(
    run_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code, out, _ = written(
        capfdbinary, str(run_folder), "--json", "--prompt", "é", "--top-p", "0.9", "--checkpoint", "1", *HOT
    )
    record = json.loads(out)
    expected = drawn("é".encode(), seed=1, top_p=0.9)
    assert code == 0 and base64.b64decode(record["base64"]) == expected
    assert record["text"] == expected.decode("utf-8", errors="replace")
    assert (record["step"], record["prompt_bytes"], record["bytes"], record["top_p"]) == (1, 2, 600, 0.9)


def test_a_terminal_gets_text_newlines_and_tabs_only(run_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlx_amort", "generate", str(run_folder), *HOT]
    shown = on_terminal(command, tmp_path, environment={"PYTHONPATH": str(Path(__file__).parents[2])})
    expected = drawn(b"")
    assert any(byte < 32 and byte not in b"\n\t" for byte in expected)
    assert not any((byte < 32 and byte not in b"\n\t") or byte == 127 for byte in shown)
    assert shown.decode() == harmless(expected.decode("utf-8", errors="backslashreplace")) + "\n"


def test_what_is_harmless() -> None:
    assert harmless("a\tb\nc\x1b[31m\x07\r\x7f\x9b é 漢\u3000字\u202e") == (
        "a\tb\nc\\x1b[31m\\x07\\r\\x7f\\x9b é 漢\u3000字\\u202e"
    )
