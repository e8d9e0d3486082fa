"""What is drawn is a pure function of weights, prompt and seed, follows the probabilities, and streams."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.cli import main
from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, RunConfig, StepConfig
from mlx_amort.errors import UserError
from mlx_amort.generate import draw, sample
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.train.checkpoint import save
from mlx_amort.train.state import new_train_state

MODEL = ByteLM(ModelConfig(layers=1, hidden=16, ffn=16, heads=2, seq=16))
PROMPT = b"Some words, more than one chunk of them. "


@pytest.fixture(scope="module")
def weights() -> Weights:
    """Wider than the initialisation, so that some bytes are much likelier than others."""
    return {name: 6.0 * value if value.ndim > 1 else value for name, value in MODEL.init_weights(0).items()}


def drawn(
    weights: Weights, prompt: bytes = PROMPT, temperature: float = 0.8, top_k: int = 0, seed: int = 0
) -> bytes:
    return bytes(sample(MODEL, weights, prompt, 40, temperature, top_k, seed))


def test_the_seed_decides(weights: Weights) -> None:
    assert len(drawn(weights)) == 40
    assert drawn(weights) == drawn(weights)
    assert drawn(weights) != drawn(weights, seed=1)
    assert drawn(weights) != drawn(weights, prompt=PROMPT[1:])


def test_greedy_takes_what_the_training_forward_finds_likeliest(weights: Weights) -> None:
    text = PROMPT + drawn(weights, temperature=0)
    whole = text + bytes(-len(text) % MODEL.config.seq)
    logits, _ = MODEL.forward(weights, mx.array([list(whole)]), MODEL.zero_state(1))
    likeliest = np.argmax(np.array(logits[0]), axis=-1)
    assert text[len(PROMPT) :] == bytes(likeliest[len(PROMPT) - 1 : len(text) - 1].astype(np.uint8))


def test_one_candidate_is_greedy(weights: Weights) -> None:
    assert drawn(weights, top_k=1) == drawn(weights, temperature=0, seed=5)


def test_an_empty_prompt_goes_on_from_a_new_line(weights: Weights) -> None:
    assert drawn(weights, prompt=b"") == drawn(weights, prompt=b"\n")


def test_precision_does_not_matter_on_the_cpu(weights: Weights) -> None:
    rounded = ByteLM(MODEL.config, "bf16")
    assert bytes(sample(rounded, weights, PROMPT, 40, 0.8, 0, 0)) == drawn(weights)


@pytest.mark.parametrize(
    ("temperature", "top_k", "kept"), [(1.0, 0, 5), (0.5, 0, 5), (2.0, 3, 3), (1.0, 9, 5)]
)
def test_draws_follow_the_softmax(temperature: float, top_k: int, kept: int) -> None:
    logits = np.array([1.0, -2.0, 3.0, 2.5, -1.0], np.float32)
    grid = 4000
    counts = np.bincount(
        [draw(logits, temperature, top_k, (i + 0.5) / grid) for i in range(grid)], minlength=5
    )
    weights = [math.exp(logit / temperature) for logit in logits]
    largest = sorted(weights, reverse=True)[:kept]
    expected = [weight / sum(largest) if weight in largest else 0.0 for weight in weights]
    np.testing.assert_allclose(counts / grid, expected, atol=1.5 / grid)


@pytest.mark.parametrize(("top_p", "kept"), [(1e-9, 1), (0.5, 1), (0.61, 2), (0.9, 2), (0.96, 3), (1.0, 5)])
def test_top_p_draws_from_the_fewest_that_are_likely_enough(top_p: float, kept: int) -> None:
    # Probabilities of 0.6, 0.3, 0.06, 0.03 and 0.01, not in this order.
    probabilities = [0.06, 0.6, 0.01, 0.3, 0.03]
    logits = np.log(probabilities).astype(np.float32)
    grid = 2000
    counts = np.bincount([draw(logits, 1.0, 0, (i + 0.5) / grid, top_p) for i in range(grid)], minlength=5)
    likeliest = sorted(probabilities, reverse=True)[:kept]
    expected = [each / sum(likeliest) if each in likeliest else 0.0 for each in probabilities]
    np.testing.assert_allclose(counts / grid, expected, atol=1.5 / grid)


def test_top_p_counts_only_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).astype(np.float32)
    # Of the two likeliest 0.4 is 57 %.
    assert {draw(logits, 1.0, 2, u, 0.56) for u in np.linspace(0, 0.999, 50)} == {0}
    assert {draw(logits, 1.0, 2, u, 0.58) for u in np.linspace(0, 0.999, 50)} == {0, 1}


def test_equal_logits_and_the_ends_of_the_unit_interval() -> None:
    flat = np.zeros(4, np.float32)
    assert [draw(flat, 1.0, 0, u) for u in (0.0, 0.2499, 0.25, 1 - 2**-53)] == [0, 0, 1, 3]
    assert draw(flat, 0.0, 0, 0.9) == 0
    assert {draw(flat, 1.0, 2, u) for u in np.linspace(0, 0.999, 50)} == {0, 1}
    assert draw(np.array([0.0, 500.0], np.float32), 1e-3, 0, 0.999) == 1
    assert draw(np.array([0.0, 500.0, 499.0], np.float32), 1e-320, 0, 0.999) == 1


def test_logits_that_are_no_numbers_are_refused(weights: Weights) -> None:
    with pytest.raises(UserError, match="not finite"):
        drawn({**weights, "n_out": weights["n_out"] * math.nan})


def test_bytes_come_as_they_are_drawn(weights: Weights) -> None:
    endless = sample(MODEL, weights, b"", 10**15, 0.8, 0, 0)
    assert bytes(islice(endless, 10)) == bytes(sample(MODEL, weights, b"", 10, 0.8, 0, 0))
    assert list(sample(MODEL, weights, PROMPT, 0, 0.8, 0, 0)) == []


@pytest.mark.parametrize(
    ("count", "temperature", "top_k", "seed"),
    [
        (-1, 0.8, 0, 0),
        (1, -0.1, 0, 0),
        (1, math.nan, 0, 0),
        (1, math.inf, 0, 0),
        (1, 1.0, -1, 0),
        (1, 1.0, 0, -1),
    ],
)
def test_bad_values_are_refused_before_anything_is_drawn(
    weights: Weights, count: int, temperature: float, top_k: int, seed: int
) -> None:
    with pytest.raises(UserError):
        sample(MODEL, weights, PROMPT, count, temperature, top_k, seed)


def test_models_that_do_not_speak_bytes() -> None:
    tokens = ByteLM(ModelConfig(trunk="dense", vocabulary=300))
    with pytest.raises(UserError, match="300 token ids"):
        sample(tokens, {}, PROMPT, 1, 1.0, 0, 0)
    few = ByteLM(ModelConfig(trunk="dense", vocabulary=100))
    with pytest.raises(UserError, match="vocabulary of 100"):
        sample(few, {}, b"az", 1, 1.0, 0, 0)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    config = Config(model=MODEL.config, step=StepConfig(precision="fp32"), run=RunConfig(steps=1))
    save(tmp_path / "run", new_train_state(MODEL, config.optimizer, seed=0), config)
    return tmp_path / "run"


def test_the_verb_writes_the_bytes_and_nothing_else(
    capfdbinary: pytest.CaptureFixture[bytes], run_folder: Path
) -> None:
    asked = ["--prompt", "Aé, ", "--bytes", "30", "--temperature", "1", "--top-k", "50", "--seed", "3"]
    with pytest.raises(SystemExit) as ending:
        main(["generate", str(run_folder), *asked])
    captured = capfdbinary.readouterr()
    expected = bytes(sample(MODEL, MODEL.init_weights(0), "Aé, ".encode(), 30, 1.0, 50, 3))
    assert (ending.value.code, captured.out, captured.err) == (0, expected, b"")


def test_amounts_are_written_as_for_train(
    capfdbinary: pytest.CaptureFixture[bytes], run_folder: Path
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["generate", str(run_folder), "--bytes", "1e1"])
    assert (ending.value.code, len(capfdbinary.readouterr().out)) == (0, 10)


def test_a_reader_that_leaves_ends_it_quietly(run_folder: Path) -> None:
    command = [sys.executable, "-m", "mlx_amort", "generate", str(run_folder), "--bytes", str(10**12)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        first = os.read(process.stdout.fileno(), 5)
        process.stdout.close()
        complaint = process.stderr.read()
        code = process.wait(timeout=60)
    # Not all that was asked for was written, so the end is no success.
    assert first and code != 0 and complaint == b""


@pytest.mark.parametrize("asked", [["--bytes", "-1"], ["--temperature", "hot"], ["--top-k", "-2"]])
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], run_folder: Path, asked: list[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["generate", str(run_folder), *asked])
    captured = capsys.readouterr()
    assert (ending.value.code, captured.out) == (2, "")
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
