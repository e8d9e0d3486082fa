"""The command `mlx-amort`: finds the verb, loads only what it needs, and reports a mistake in one line."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click

from mlx_amort import __version__
from mlx_amort.backend import load_blas
from mlx_amort.backend.kernel_cache import explain
from mlx_amort.cli.arguments import check_values
from mlx_amort.errors import UserError, did_you_mean, printable, user_error_of
from mlx_amort.streams import make_standard_streams_safe, silence, write


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


class ReaderHasGone(Exception):
    """Who read the output (head, less) has closed it; click would make exit 1 of it."""


class LazyVerbs(click.Group):
    """A group that imports a verb's module when the verb is used, not when it is listed."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with _closed_pipe_told():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe_told():
            return super().invoke(ctx)

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
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            verb_context = click.Context(command, info_name=name, parent=ctx)
            check_values(command, verb_context, rest)
            _check_given_once(command, verb_context, rest)
        return name, command, rest

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
    """Run the command; exit 0, what the verb returned, 2 for a user's mistake, or 1 (traceback) for a bug.

    141 when who read the output has gone, as a shell reports for a program that SIGPIPE ended.
    """
    try:
        # Until here Ctrl-C ended the program on the spot (`__main__`); verbs end in good order.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _interrupt)
        make_standard_streams_safe()
        load_blas()
        result = _run(arguments)
        with _closed_pipe_told():
            sys.stdout.flush()
    except UserError as error:
        _refuse(str(error))
    except click.ClickException as error:
        _refuse(_one_line(error))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except ReaderHasGone:
        silence(sys.stdout)
        silence(sys.stderr)
        sys.exit(141)
    except OSError as error:
        told = user_error_of(error)
        if told is None:
            raise
        _silence_if_full(error)
        _refuse(str(told))
    sys.exit(result if isinstance(result, int) else 0)


def _run(arguments: Sequence[str] | None) -> Any:
    """What the verb returned. A signal that ended a compiler too is raised here, as KeyboardInterrupt.

    Raises: UserError for a kernel that cannot be compiled or loaded.
    """
    try:
        return program.main(args=arguments, prog_name="mlx-amort", standalone_mode=False)
    except RuntimeError as error:
        told = explain(error)
        if told is None:
            raise
        raise told from error


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the verb in good order, or on the spot while it still imports: an extension (mlx) cut off there aborts."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def _silence_if_full(error: OSError) -> None:
    """After a write that failed without naming a file, what standard output still holds would fail again."""
    if error.filename is None:
        silence(sys.stdout)


@contextmanager
def _closed_pipe_told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderHasGone from error


def _refuse(message: str) -> NoReturn:
    write(sys.stderr, f"error: {message}\n")
    sys.exit(2)


def _check_given_once(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Refuse an option that is given twice where the last would silently win, and an empty value.

    What click itself refuses is left to it. Raises: UserError.
    """
    try:
        values, _, order = command.make_parser(context).parse_args(list(arguments))
    except click.UsageError:
        return
    for parameter in dict.fromkeys(order):
        if not isinstance(parameter, click.Option):
            continue
        name, value = max(parameter.opts, key=len), values.get(parameter.name or "")
        is_harmless = parameter.multiple or (parameter.is_flag and not parameter.secondary_opts)
        if order.count(parameter) > 1 and not is_harmless:
            raise UserError(name, "given twice", "give it once")
        # An option that is empty without being given, such as a prompt, may be given empty.
        values_given = value if isinstance(value, list) else [value]
        is_blank = any(isinstance(each, str) and not each.strip() for each in values_given)
        if is_blank and parameter.default != "":
            raise UserError(name, "its value is empty", "give one, or leave the option out")


def _one_line(error: click.ClickException) -> str:
    """A command line that click refused, as "what: why; what to do"."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "mlx-amort"
    if isinstance(error, click.NoSuchOption) and context:
        known = [name for option in context.command.get_params(context) for name in _spellings(option)]
        hint = did_you_mean(error.option_name, known)
        return str(UserError(f"{command} {error.option_name}", "no such option", hint))
    reason = " ".join(error.format_message().split()).rstrip(".")
    return printable(f"{command}: {reason[:1].lower()}{reason[1:]}; see {command} --help")


def _spellings(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []
