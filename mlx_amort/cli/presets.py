"""`mlx-amort presets`: what presets there are, and what one of them resolves to."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, get_args

import click

from mlx_amort import command_line
from mlx_amort.cli.tables import align
from mlx_amort.config.model import Trunk
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import dump, resolve, to_dict
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from mlx_amort.optim.partition import Owner, has_weight_decay, owners


@click.command()
@click.argument("name", required=False)
@click.option("--trunk", metavar=f"[{'|'.join(get_args(Trunk))}]", help="Take this trunk, not the preset's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--owners", "with_owners", is_flag=True, help="Print which optimizer owns which parameter.")
def command(name: str | None, trunk: str | None, as_json: bool, with_owners: bool) -> None:
    """List the presets with trunk, shape and parameters, or print one resolved.

    With NAME, the resolved configuration is printed as YAML, which --config reads, with the key
    parameters counting what is trained.
    """
    overrides = [f"model.trunk={trunk}"] if trunk else []
    if name is None:
        if with_owners:
            raise UserError(
                "--owners",
                "needs the name of a preset",
                f"try {command_line.command('presets', 'demo', '--owners')}",
            )
        configs = [resolve(preset=preset, overrides=overrides) for preset in preset_names()]
        configs.sort(key=lambda config: config.model.parameters)
        click.echo(
            json.dumps([_as_record(config) for config in configs], indent=2) if as_json else _table(configs)
        )
        return
    config = resolve(preset=name, overrides=overrides)
    if as_json:
        record = _as_record(config)
        if with_owners:
            record["owners"] = _owners(config)
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(_owner_table(config) if with_owners else _as_yaml(config))


def _as_record(config: Config) -> dict[str, Any]:
    return {**to_dict(config), "parameters": config.model.parameters}


def _as_yaml(config: Config) -> str:
    return f"{dump(config)}parameters: {config.model.parameters}"


def _table(configs: list[Config]) -> str:
    rows = [
        [str(config.preset), config.model.trunk]
        + [str(size) for size in _shape(config)]
        + [f"{config.model.parameters:,}"]
        for config in configs
    ]
    return align(["preset", "trunk", "layers", "hidden", "ffn", "heads", "seq", "parameters"], rows)


def _shape(config: Config) -> tuple[int, ...]:
    model = config.model
    return model.layers, model.hidden, model.ffn, model.heads, model.seq


def _owners(config: Config) -> dict[str, Owner]:
    return owners(config.model.parameter_shapes(), config.optimizer.name)


def _owner_table(config: Config) -> str:
    shapes = config.model.parameter_shapes()
    owned = _owners(config)
    rows = [
        [name, " × ".join(map(str, shape)), owned[name], "yes" if has_weight_decay(name) else "no"]
        for name, shape in shapes.items()
    ]
    totals: Counter[str] = Counter()
    for name, shape in shapes.items():
        totals[owned[name]] += math.prod(shape)
    summary = [f"{owner} owns {count:,} parameters" for owner, count in sorted(totals.items())]
    return "\n".join([align(["parameter", "shape", "owner", "decays"], rows), "", *summary])
