"""What is refused of a command line before click reads it, which would take it silently for something else."""

from __future__ import annotations

import itertools
import re

import click

from mlx_amort.errors import UserError

# As an option is spelt: a value such as "-- so it goes" or "-1" is none.
_OPTION = re.compile(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?", re.DOTALL)


def check_values(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Refuse an option that takes a value and is followed by an option. Raises: UserError."""
    taking: set[str] = set()
    others: set[str] = set()
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            is_flag = parameter.is_flag or parameter.count
            (others if is_flag else taking).update([*parameter.opts, *parameter.secondary_opts])
    is_value = False
    for name, value in itertools.pairwise(arguments):
        if name == "--" and not is_value:
            return
        is_value = not is_value and name in taking
        if is_value and (value in taking | others or _OPTION.fullmatch(value)):
            verb = "is" if value in taking | others else "looks like"
            why = f"needs a value, and {value} {verb} an option"
            # Loaded only here: --help needs no configuration.
            from mlx_amort.command_line import quote

            raise UserError(name, why, f"write {quote(f'{name}={value}')} if that is the value")
