"""The command `mlx-amort`: finds the verb, loads only what it needs, and tells mistakes in one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import click

from mlx_amort import __version__
from mlx_amort.backend import load_blas
from mlx_amort.errors import UserError, did_you_mean


class Verb(NamedTuple):
    """Where a verb's `command` lives, and the line that help shows without importing it."""

    module: str
    summary: str


VERBS = {
    "train": Verb("mlx_amort.cli.train", "Train a byte language model, or resume a run."),
    "evaluate": Verb("mlx_amort.cli.evaluate", "Bits per byte of a run over a whole validation part."),
    "generate": Verb("mlx_amort.cli.generate", "Continue a prompt, byte by byte, in constant memory."),
    "presets": Verb("mlx_amort.cli.presets", "List the presets, or print one resolved."),
    "data": Verb("mlx_amort.cli.data", "Describe a corpus: size, entropy, boundaries, a sample."),
    "profile": Verb("mlx_amort.cli.profile", "Measure what a step costs on this machine, and fit it."),
    "fit": Verb("mlx_amort.cli.fit", "Fit step time = c0 + c1 T to measured steps."),
    "plan": Verb("mlx_amort.cli.plan", "Choose batch and chunks for a byte budget from a profile."),
    "memory-estimate": Verb("mlx_amort.cli.memory_estimate", "Forecast a step's peak memory, part by part."),
    "compare": Verb("mlx_amort.cli.compare", "Compare runs at equal bytes seen."),
}


class LazyVerbs(click.Group):
    """A group that imports a verb's module when the verb is used, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name].module).command
        assert isinstance(command, click.Command)
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            raise UserError(f"mlx-amort {args[0]}", "no such verb", did_you_mean(args[0], VERBS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


@click.group(
    cls=LazyVerbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB [ARGS]...",
)
@click.version_option(__version__, "--version", message="mlx-amort %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Train byte language models on MLX, and know beforehand what an optimizer step will cost."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; exit 0, what the verb returned, 2 for a user's mistake, or 1 (traceback) for a bug."""
    load_blas()
    try:
        result = program.main(args=arguments, prog_name="mlx-amort", standalone_mode=False)
    except UserError as error:
        _refuse(str(error))
    except click.ClickException as error:
        _refuse(_one_line(error))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; writing what is still buffered must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(result if isinstance(result, int) else 0)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _one_line(error: click.ClickException) -> str:
    """A command line that click refused, as "what: why; what to do"."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "mlx-amort"
    if isinstance(error, click.NoSuchOption) and context:
        known = [name for option in context.command.get_params(context) for name in _spellings(option)]
        return f"{command} {error.option_name}: no such option; {did_you_mean(error.option_name, known)}"
    reason = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {reason[:1].lower()}{reason[1:]}; see {command} --help"


def _spellings(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []
