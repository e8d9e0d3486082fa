"""Bits per byte: every held-out byte counted once, states carried, the figure a plain walk finds too."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlx_amort.cli import main
from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, DataConfig, RunConfig, SourceConfig, StepConfig
from mlx_amort.data.card import zlib_bits_per_byte
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.opening import open_corpora, open_corpus, open_whole
from mlx_amort.data.validation import validation_targets
from mlx_amort.evaluate import EVALUATION_ROWS, evaluate
from mlx_amort.model.byte_lm import ByteLM, StreamState, Weights
from mlx_amort.train.checkpoint import load_config, save
from mlx_amort.train.checkpoint_folders import newest_checkpoint
from mlx_amort.train.state import new_train_state

MODEL = ModelConfig(layers=1, hidden=16, ffn=16, heads=2, seq=16)
SENTENCE = b"A row reads bytes, and the next row reads others; none is read twice.\n"


def corpus_of(folder: Path, name: str, text: bytes, validation_bytes: int) -> Corpus:
    (folder / name).write_bytes(text)
    return open_corpus(str(folder / name), "uint8", (validation_bytes + 0.5) / len(text))


@pytest.fixture
def corpora(tmp_path: Path) -> tuple[Corpus, Corpus]:
    """467 and 100 held-out bytes: streams end inside a chunk, at different chunks."""
    return (
        corpus_of(tmp_path, "long.txt", SENTENCE * 20, 467),
        corpus_of(tmp_path, "short.txt", SENTENCE[::-1] * 10, 100),
    )


def weights_of(model: ByteLM) -> Weights:
    """Wider than the initialisation, so that the state matters."""
    return {name: 6.0 * value if value.ndim > 1 else value for name, value in model.init_weights(0).items()}


def walked_nats(model: ByteLM, weights: Weights, units: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Nats of units[1:] along one stream, chunk after chunk, normalised in float64."""
    state, nats = model.zero_state(1), []
    seq = model.config.seq
    for start in range(0, len(units) - 1, seq):
        piece = units[start : start + seq + 1]
        padded = np.zeros((1, seq), np.uint8)
        padded[0, : len(piece) - 1] = piece[:-1]
        logits, state = model.forward(weights, mx.array(padded), state)
        wide = np.array(logits)[0, : len(piece) - 1].astype(np.float64)
        nats.append(np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), piece[1:]])
    return np.concatenate(nats)


def streams_of(corpus: Corpus, rows: int) -> list[NDArray[np.uint8]]:
    held_out = corpus.read(corpus.train_units, corpus.validation_units)
    length = -(-(len(held_out) - 1) // rows)
    return [held_out[row * length : row * length + length + 1] for row in range(rows)]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_plain_walk_finds_the_same(corpora: tuple[Corpus, Corpus], rows: int) -> None:
    model = ByteLM(MODEL)
    weights = weights_of(model)
    found = evaluate(model, weights, corpora, rows)
    assert found.is_whole
    total = 0.0
    for quality, corpus in zip(found.corpora, corpora, strict=True):
        nats = np.concatenate([walked_nats(model, weights, stream) for stream in streams_of(corpus, rows)])
        assert (quality.name, quality.bytes) == (corpus.name, len(nats))
        assert quality.bits_per_byte == pytest.approx(nats.mean() / np.log(2), rel=1e-6)
        total += nats.sum()
    assert found.bytes == validation_targets(corpora) == 466 + 99
    assert found.bits_per_byte == pytest.approx(total / np.log(2) / found.bytes, rel=1e-6)


def test_uniform_logits_cost_eight_bits(corpora: tuple[Corpus, Corpus]) -> None:
    model = ByteLM(MODEL)
    weights = model.init_weights(0)
    weights["tok"] = mx.zeros_like(weights["tok"])
    found = evaluate(model, weights, corpora)
    assert found.bits_per_byte == pytest.approx(8, abs=1e-6)
    assert [quality.bits_per_byte for quality in found.corpora] == pytest.approx([8, 8], abs=1e-6)


def test_the_cut_into_streams_moves_the_figure_little(corpora: tuple[Corpus, Corpus]) -> None:
    """Only the bytes near a stream's start and the places of the chunks differ."""
    model = ByteLM(MODEL)
    weights = weights_of(model)
    one, three = (evaluate(model, weights, corpora, rows).bits_per_byte for rows in (1, 3))
    assert one != three
    assert one == pytest.approx(three, rel=0.02)


def test_a_capped_evaluation_walks_the_leading_chunks(corpora: tuple[Corpus, Corpus]) -> None:
    model, rows, seq = ByteLM(MODEL), 2, MODEL.seq
    weights = weights_of(model)
    found = evaluate(model, weights, corpora, rows, max_bytes=200)
    # 200 bytes, 466 : 99 by size, in chunks of 2 rows of 16: 5 of the long corpus, 1 of the short.
    assert [quality.bytes for quality in found.corpora] == [5 * rows * seq, rows * seq]
    assert not found.is_whole
    leading = [
        walked_nats(model, weights, stream[: chunks * seq + 1])
        for corpus, chunks in zip(corpora, (5, 1), strict=True)
        for stream in streams_of(corpus, rows)
    ]
    assert found.bits_per_byte == pytest.approx(np.concatenate(leading).mean() / np.log(2), rel=1e-6)
    assert evaluate(model, weights, corpora, rows, max_bytes=1).bytes == 2 * rows * seq
    whole = evaluate(model, weights, corpora, rows, max_bytes=565)
    assert whole.is_whole and whole == evaluate(model, weights, corpora, rows)


def test_progress_reaches_its_end(corpora: tuple[Corpus, Corpus]) -> None:
    model = ByteLM(MODEL)
    told: list[tuple[int, int]] = []
    evaluate(
        model, model.init_weights(0), corpora, 3, progress=lambda done, total: told.append((done, total))
    )
    chunks = -(-156 // 16) + -(-33 // 16)
    assert told == [(done, chunks) for done in range(1, chunks + 1)]


def test_the_forward_is_compiled_once(
    corpora: tuple[Corpus, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = 0
    forward = ByteLM.forward

    def counted(
        model: ByteLM, weights: Weights, tokens: mx.array, state: StreamState
    ) -> tuple[mx.array, StreamState]:
        nonlocal traces
        traces += 1
        return forward(model, weights, tokens, state)

    monkeypatch.setattr(ByteLM, "forward", counted)
    for seed in (0, 1):
        # An equal model made anew is the same model.
        model = ByteLM(ModelConfig(layers=1, hidden=16, ffn=16, heads=1, seq=16))
        evaluate(model, model.init_weights(seed), corpora)
    assert traces == 1


@pytest.fixture
def run_folder(tmp_path: Path, corpora: tuple[Corpus, Corpus]) -> Path:
    sources = tuple(SourceConfig(corpus.name) for corpus in corpora)
    config = Config(
        model=MODEL,
        step=StepConfig(precision="fp32"),
        data=DataConfig(sources, validation_fraction=0.25),
        run=RunConfig(steps=1),
    )
    folder = tmp_path / "run"
    state = new_train_state(ByteLM(MODEL), config.optimizer, seed=0)
    state.step = 7
    save(folder, state, config)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(ending.value.code, int)
    return ending.value.code, captured.out, captured.err


def test_the_verb_prints_each_corpus_and_all(
    capsys: pytest.CaptureFixture[str], run_folder: Path, corpora: tuple[Corpus, Corpus]
) -> None:
    data = DataConfig(tuple(SourceConfig(corpus.name) for corpus in corpora), validation_fraction=0.25)
    opened = open_corpora(data).held_out
    model = ByteLM(MODEL)
    expected = evaluate(model, model.init_weights(0), opened, EVALUATION_ROWS)
    code, out, err = run(capsys, "evaluate", str(run_folder))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        f"{run_folder}, step 7: {expected.bits_per_byte:.4f} bits per byte over {expected.bytes:,} "
        f"validation bytes (zlib -9: {zlib_bits_per_byte(opened):.3f})"
    )
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [corpus.name for corpus in corpora]
    code, out, _ = run(capsys, "evaluate", str(run_folder), "--json")
    record = json.loads(out)
    assert (code, record["step"], record["bytes"]) == (0, 7, expected.bytes)
    assert record["bits_per_byte"] == expected.bits_per_byte
    assert [corpus["bytes"] for corpus in record["corpora"]] == [corpus.bytes for corpus in expected.corpora]


def test_the_verb_on_another_corpus(
    capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_bytes(SENTENCE * 8)
    code, out, _ = run(capsys, "evaluate", str(run_folder), "--data", str(tmp_path / "other.txt"), "--json")
    record = json.loads(out)
    assert (code, record["bytes"], len(record["corpora"])) == (0, len(SENTENCE) * 2 - 1, 1)


def test_the_verb_scores_all_of_a_text(
    capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "test.txt"
    held_out.write_bytes(SENTENCE * 8)
    model = ByteLM(MODEL)
    whole = open_whole(DataConfig((SourceConfig(str(held_out)),)))
    expected = evaluate(model, model.init_weights(0), whole)
    arguments = ["evaluate", str(run_folder), "--data", str(held_out), "--whole"]
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert (
        f"{expected.bits_per_byte:.4f} bits per byte over {8 * len(SENTENCE) - 1} bytes of all the text"
        in out
    )
    record = json.loads(run(capsys, *arguments, "--json")[1])
    assert record["is_whole_text"] and record["bytes"] == expected.bytes == 8 * len(SENTENCE) - 1
    assert record["bits_per_byte"] == expected.bits_per_byte


def test_the_verb_takes_the_validation_corpus_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpora: tuple[Corpus, Corpus]
) -> None:
    data = DataConfig((SourceConfig(corpora[0].name),), validation=corpora[1].name)
    config = Config(model=MODEL, step=StepConfig(precision="fp32"), data=data, run=RunConfig(steps=1))
    save(tmp_path / "run", new_train_state(ByteLM(MODEL), config.optimizer, seed=0), config)
    record = json.loads(run(capsys, "evaluate", str(tmp_path / "run"), "--json")[1])
    assert [(corpus["name"], corpus["bytes"]) for corpus in record["corpora"]] == [
        (corpora[1].name, 10 * len(SENTENCE) - 1)
    ]
    # Another corpus has its own held-out part.
    other = run(capsys, "evaluate", str(tmp_path / "run"), "--data", corpora[1].name, "--json")[1]
    assert json.loads(other)["bytes"] == len(SENTENCE) * 10 // 20 - 1


def test_blocks_are_scored_with_the_state_carried_along_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(SENTENCE * 3000)
    corpus = open_corpus(str(tmp_path / "a.txt"), "uint8", 0.05, "blocks")
    assert "in 2 blocks" in corpus.place_held_out
    model = ByteLM(MODEL)
    weights = weights_of(model)
    found = evaluate(model, weights, [corpus], rows=1)
    held_out = corpus.read(corpus.train_units, corpus.validation_units)
    nats = walked_nats(model, weights, held_out.astype(np.uint8))
    assert found.bytes == len(nats) == corpus.validation_units - 1
    assert found.bits_per_byte == pytest.approx(nats.mean() / np.log(2), rel=1e-6)


def test_the_verb_takes_the_checkpoint_of_a_step(
    capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    config = load_config(newest_checkpoint(run_folder))
    state = new_train_state(ByteLM(MODEL), config.optimizer, seed=1)
    state.step = 9
    save(run_folder, state, config, keeps_older=True)
    of_step: dict[int, set[float]] = {}
    for arguments in ((), ("--checkpoint", "7"), ("--checkpoint", "9")):
        code, out, _ = run(capsys, "evaluate", str(run_folder), "--json", *arguments)
        record = json.loads(out)
        assert code == 0 and record["checkpoint"].endswith(f"step-{record['step']:08}")
        of_step.setdefault(record["step"], set()).add(record["bits_per_byte"])
    assert list(of_step) == [9, 7] and all(len(bits) == 1 for bits in of_step.values())
    assert of_step[7] != of_step[9]
    code, _, err = run(capsys, "evaluate", str(run_folder), "--checkpoint", "8")
    assert code == 2 and "has no checkpoint of that step; name one of 7, 9" in err


def test_mistakes(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    for arguments in (["nowhere"], [str(run_folder), "--data", "nowhere"], []):
        code, out, err = run(capsys, "evaluate", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1
