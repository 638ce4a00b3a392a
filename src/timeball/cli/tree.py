"""How commands join the command line: groups, decorators, shared options, lazy loading.

A command is a function whose first parameter is a `CliSession`; the options that make a session are added to its own:

    jobs = command_group("jobs", "Jobs: what to run and when.", ["timeball jobs"])

    @list_command(jobs, "timeball jobs list")
    def list_jobs(session: CliSession, queue: Annotated[str | None, typer.Option()] = None) -> None: ...

    @command(jobs, "pause", "timeball jobs pause nightly")
    def pause_job(session: CliSession, job: Annotated[str, typer.Argument()]) -> None: ...

The docstring of the function is the help. `app.py` lists all commands with their modules and summaries: a module is
imported when its command is called, and `timeball --help` imports none of them. A test compares the summaries with the docstrings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import chain
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.models import ArgumentInfo

from timeball.cli.output import OutputFormat, TimeStyle
from timeball.cli.session import CliSession


class CliCommand(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> Any:
        """Its options and arguments."""
        return _convert_lazily(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read what was typed."""
        with _with_context(ctx):
            return super().parse_args(ctx, args)


class CliGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> Any:
        """Its options."""
        return _convert_lazily(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read what was typed."""
        with _with_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed; UnknownCommand with suggestions if there is none."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            from timeball.cli.errors import UnknownCommand

            raise UnknownCommand(args[0], ctx)
        return super().resolve_command(ctx, args)


class LazyCommand(TyperCommand):
    """A command or group that has not been imported: its name, its `module:attribute`, and its summary."""

    def __init__(self, name: str, location: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._location = location

    def load(self) -> Any:
        """Import it: a group, or one of the ungrouped commands of its module."""
        module, _, attribute = self._location.partition(":")
        group = typer.main.get_group(getattr(import_module(f"timeball.cli.{module}"), attribute))
        return group if group.name == self.name else group.commands[str(self.name)]


class LazyGroup(CliGroup):
    """The root, whose commands are imported when they are run or completed."""

    lazy_commands: ClassVar[Sequence[LazyCommand]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for lazy_command in self.lazy_commands:
            self.add_command(lazy_command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed, imported."""
        name, resolved, rest = super().resolve_command(ctx, args)
        return name, resolved.load() if isinstance(resolved, LazyCommand) else resolved, rest


def with_examples(text: str | None, examples: Sequence[str]) -> str:
    """A help text with examples behind its first paragraph. `\\b` keeps their lines as they are."""
    text = inspect.cleandoc(text or "")
    if not examples:
        return text
    summary, _, rest = text.partition("\n\n")
    example_lines = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    return "\n\n".join(part for part in (summary, example_lines, rest) if part)


@contextmanager
def _with_context(ctx: Any) -> Iterator[None]:
    """Add the command to errors that Typer raises without it."""
    try:
        yield
    except TyperException as error:
        if getattr(error, "ctx", ctx) is None:
            vars(error)["ctx"] = ctx
        raise


class _LazyConverter:
    """Converts the value of a parameter with Typer's own converter, which is built only if the value needs conversion.

    Typer builds a Pydantic adapter for every parameter of a command, even for those that were not given. Importing Pydantic takes as
    long as all the rest of `timeball next`, and would stay in the memory of every supervisor.

    It sets a private field of Typer's parameters, which has no public counterpart. Without it, `timeball jobs --help` takes 227 ms of
    processor time instead of 126, and `timeball worker --help` 183 instead of 87.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if not _needs_conversion(value, param.type_descriptor):
            return () if value is None and (param.multiple or param.nargs == -1) else value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


_LAZY_CONVERTER = _LazyConverter()


def _convert_lazily(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        # A release of Typer without this field is slower, and correct all the same.
        if getattr(parameter, "_runtime_param", _LAZY_CONVERTER) is None:
            parameter._runtime_param = _LAZY_CONVERTER
    return parameters


def _needs_conversion(value: Any, descriptor: Any) -> bool:
    """Whether a value was given that is not of the parameter's type yet, unlike a default, or a text for a text parameter."""
    if value is None or value == ():
        return False
    return type(value) is not descriptor.annotation or descriptor.parameter_info.parser is not None


AppReference = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="The program with your handlers: module:attribute, such as app:tb."),
]
DatabaseAppReference = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="Your program, if it names its own database: module:attribute."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; recorded in the audit log.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many to show at most.")]

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server to call. Default: TIMEBALL_URL, or else the database of this environment."),
]
OutputOption = Annotated[
    OutputFormat | None,
    typer.Option("-o", "--output", help="The format. Default: a table on a terminal, plain lines in a pipe."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Times = Annotated[
    TimeStyle | None,
    typer.Option("--time", help="How to print instants. Default: relative on a terminal, utc in a pipe."),
]

CommandFunction = Callable[..., Any]


def command_group(name: str, help_text: str, examples: Sequence[str] = ()) -> typer.Typer:
    """A noun whose verbs are commands; called alone, it lists."""
    return typer.Typer(name=name, help=with_examples(help_text, examples), cls=CliGroup, rich_markup_mode=None)


def ungrouped_commands() -> typer.Typer:
    """The commands of a module that have no noun before them."""
    return typer.Typer(cls=CliGroup, rich_markup_mode=None)


def list_command(group: typer.Typer, *examples: str) -> Callable[[CommandFunction], CommandFunction]:
    """The `list` command of a noun, which also runs when no verb follows."""
    return lambda function: default_command(group)(command(group, "list", *examples)(function))


def default_command(group: typer.Typer) -> Callable[[CommandFunction], CommandFunction]:
    """A command that runs when no verb follows a noun."""

    def decorate(function: CommandFunction) -> CommandFunction:
        run = _unless_subcommand(with_session(function))
        group.callback(invoke_without_command=True, help=group.info.help)(run)
        return function

    return decorate


def command(group: typer.Typer, name: str, *examples: str) -> Callable[[CommandFunction], CommandFunction]:
    """A command whose first parameter is a CliSession."""

    def decorate(function: CommandFunction) -> CommandFunction:
        group.command(name, cls=CliCommand, help=with_examples(function.__doc__, examples))(with_session(function))
        return function

    return decorate


def command_without_session(
    group: typer.Typer, name: str, *examples: str
) -> Callable[[CommandFunction], CommandFunction]:
    """A command that calls no server and has none of the common options."""

    def decorate(function: CommandFunction) -> CommandFunction:
        group.command(name, cls=CliCommand, help=with_examples(function.__doc__, examples))(function)
        return function

    return decorate


def with_session(function: CommandFunction) -> CommandFunction:
    """*function* as Typer sees it: without its session, with the options that make one."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }

    def run(**given: Any) -> Any:
        output, as_json = given.pop("output"), given.pop("as_json")
        session = CliSession(given.pop("url"), OutputFormat.JSON if as_json else output, given.pop("times"))
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return function(session, **given)

    common = [
        _parameter("output", OutputOption, None),
        _parameter("as_json", AsJson, False),
        _parameter("times", Times, None),
        _parameter("url", Url, None),
    ]
    return _with_signature(run, [*chain.from_iterable(map(_expand_options, own)), *common], function)


def _expand_options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """A parameter as it is; a dataclass stands for its fields, which are options that several commands share."""
    group = parameter.annotation
    if not is_dataclass(group):
        yield parameter
        return
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _parameter(field.name, hints[field.name], field.default)


def _unless_subcommand(run: CommandFunction) -> CommandFunction:
    defaults: dict[str, Any] = {}

    def run_default(ctx: typer.Context, **given: Any) -> Any:
        return None if ctx.invoked_subcommand else run(**defaults, **given)

    context = _parameter("ctx", typer.Context, inspect.Parameter.empty)
    # Arguments are left out: the verb behind the noun would be taken for the value of one.
    parameters = inspect.signature(run).parameters.values()
    options = [parameter for parameter in parameters if not _is_argument(parameter)]
    defaults.update({parameter.name: parameter.default for parameter in parameters if _is_argument(parameter)})
    return _with_signature(run_default, [context, *options], run)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(metadata, ArgumentInfo) for metadata in get_args(parameter.annotation))


def _with_signature(run: Any, parameters: Sequence[inspect.Parameter], model: CommandFunction) -> CommandFunction:
    """*run* with a signature that Typer can read."""
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(named)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    run.__name__, run.__doc__ = model.__name__, model.__doc__
    function: CommandFunction = run
    return function


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
