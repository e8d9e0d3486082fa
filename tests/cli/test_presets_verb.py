"""The command's frame and the verb `presets`, on exact output through the entry point."""

from __future__ import annotations

import json

import pytest
import yaml

from mlx_amort.cli import VERBS, main
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import from_dict, resolve


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(ending.value.code, int)
    return ending.value.code, captured.out, captured.err


def test_the_list_names_trunk_shape_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "presets")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["preset", "trunk", "layers", "hidden", "ffn", "heads", "seq", "parameters"]
    assert ["veritate_200m", "hybrid", "16", "1024", "4096", "16", "1024", "270,510,336"] in lines
    assert {line[0] for line in lines[1:]} == set(preset_names())


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "presets", "--json")
    assert code == 0
    assert {record["preset"]: record["parameters"] for record in json.loads(out)}["huge"] == 9_574_656


def test_one_preset_as_yaml_is_read_back_as_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "presets", "veritate_80m")
    content = yaml.safe_load(out)
    assert (code, content["parameters"]) == (0, 121_751_184)
    assert from_dict(content) == resolve("veritate_80m")


def test_one_preset_as_json_with_another_trunk(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "presets", "veritate_10m", "--trunk", "patched", "--json")
    record = json.loads(out)
    assert (code, record["parameters"], record["model"]["trunk"]) == (0, 15_040_320, "patched")


def test_owners(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "presets", "demo", "--owners", "--json")
    owned = json.loads(out)["owners"]
    assert (code, owned["blocks.2.decay_w"], owned["tok"]) == (0, "muon", "adamw")
    code, out, _ = run(capsys, "presets", "demo", "--owners")
    counts = [int(line.split()[2].replace(",", "")) for line in out.splitlines()[-2:]]
    assert (code, sum(counts)) == (0, resolve("demo").model.parameters)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["presets", "veritate_200"], "preset veritate_200: no such preset; did you mean 'veritate_200m'?"),
        (["presets", "demo", "--jsn"], "mlx-amort presets --jsn: no such option; did you mean '--json'?"),
        (
            ["presets", "--owners"],
            "--owners: needs the name of a preset; try mlx-amort presets demo --owners",
        ),
        (["trian"], "mlx-amort trian: no such verb; did you mean 'train'?"),
        (["--vresion"], "mlx-amort --vresion: no such option; did you mean '--version'?"),
    ],
)
def test_mistakes_are_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(capsys, *arguments) == (2, "", f"error: {message}\n")


def test_what_click_refuses_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "presets", "one", "two")
    assert (code, out) == (2, "")
    assert err.startswith("error: mlx-amort presets: ")
    assert err.endswith("; see mlx-amort presets --help\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    for name, verb in VERBS.items():
        assert f"  {name} " in out
        assert verb.summary in out


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mlx_amort.cli.presets.command.callback", fail)
    with pytest.raises(ZeroDivisionError):
        main(["presets"])
