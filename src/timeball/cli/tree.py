"""How commands join the command line: groups, decorators, shared options, lazy loading."""

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

# The root of the tree, whose branches are imported when somebody asks for them: `timeball --help` needs none of their code.
#
# What a branch says of itself before it is there stands in the table of `main`; a test compares it with the branch.
# Values that need no reading are left as they are: for any other, Typer builds a Pydantic adapter, and importing Pydantic takes
# longer than all the rest of `timeball next`.


class CliCommand(TyperCommand):
    """A command that reads its values quickly."""

    def get_params(self, ctx: Any) -> Any:
        """What can be typed behind it."""
        return _convert_lazily(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """What was typed behind it."""
        with _with_context(ctx):
            return super().parse_args(ctx, args)


class CliGroup(TyperGroup):
    """A group of commands that reads its values quickly."""

    def get_params(self, ctx: Any) -> Any:
        """What can be typed behind it."""
        return _convert_lazily(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """What was typed behind it."""
        with _with_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            from timeball.cli.errors import UnknownCommand

            raise UnknownCommand(args[0], ctx)
        return super().resolve_command(ctx, args)


class LazyCommand(TyperCommand):
    """A command that stands in the tree and has not been imported: its name, where it lives, and what it does in a sentence."""

    def __init__(self, name: str, location: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._location = location

    def load(self) -> Any:
        """The command itself: a noun, or one of several in its module."""
        module, _, attribute = self._location.partition(":")
        group = typer.main.get_group(getattr(import_module(f"timeball.cli.{module}"), attribute))
        return group if group.name == self.name else group.commands[str(self.name)]


class LazyGroup(CliGroup):
    """The root: its commands are branches, until one of them is to be run or completed."""

    lazy_commands: ClassVar[Sequence[LazyCommand]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for branch in self.lazy_commands:
            self.add_command(branch)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed, imported."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, LazyCommand) else found, rest


def with_examples(text: str | None, examples: Sequence[str]) -> str:
    """A help text that starts with examples. `\\b` keeps the lines as they are."""
    words = inspect.cleandoc(text or "")
    if not examples:
        return words
    summary, _, rest = words.partition("\n\n")
    shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    return "\n\n".join(part for part in (summary, shown, rest) if part)


@contextmanager
def _with_context(ctx: Any) -> Iterator[None]:
    """Let an error know the command that it is about; Typer forgets it for some."""
    try:
        yield
    except TyperException as error:
        if getattr(error, "ctx", ctx) is None:
            vars(error)["ctx"] = ctx
        raise


class _LazyConverter:
    """Stands in the place of what reads the value of a parameter, and makes that one when a value has to be read."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if not _needs_conversion(value, param.type_descriptor):
            return () if value is None and (param.multiple or param.nargs == -1) else value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


_LAZY_CONVERTER = _LazyConverter()


def _convert_lazily(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        # A release of Typer that keeps it elsewhere is slower, and right all the same.
        if getattr(parameter, "_runtime_param", _LAZY_CONVERTER) is None:
            parameter._runtime_param = _LAZY_CONVERTER
    return parameters


def _needs_conversion(value: Any, descriptor: Any) -> bool:
    """Whether something was given, and is not yet of the kind that is wanted: a default is, and any text where text is wanted."""
    if value is None or value == ():
        return False
    return type(value) is not descriptor.annotation or descriptor.parameter_info.parser is not None


AppReference = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="Where your handlers are: module:attribute, such as app:tb.")
]


# How commands join the tree: each is given a Session, and has the options that every command has.
#
# jobs = noun("jobs", "Jobs: what to run and when.")
#
# @listing(jobs)
# def list_jobs(session: Session, queue: Annotated[str | None, typer.Option()] = None) -> None: ...
#
# @command(jobs, "pause")
# def pause(session: Session, job: Annotated[str, typer.Argument()]) -> None:
# """Let nothing of a job start. (The first line of the help; its examples stand in `examples`.)"""

CommandFunction = Callable[..., Any]

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server to talk to; TIMEBALL_URL, or else the database of this environment."),
]
OutputOption = Annotated[
    OutputFormat | None,
    typer.Option("-o", "--output", help="How to print; by itself a table for people, lines for pipes."),
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Times = Annotated[
    TimeStyle | None,
    typer.Option("--time", help="How to write instants; by itself relative for people, utc for pipes."),
]


# Options that several commands share.
DatabaseAppReference = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="Your program, if it names its own database: module:attribute.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; stands in the audit.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many to show at most.")]


def command_group(name: str, help_text: str, examples: Sequence[str] = ()) -> typer.Typer:
    """A noun of the tree; alone it lists."""
    return typer.Typer(name=name, help=with_examples(help_text, examples), cls=CliGroup, rich_markup_mode=None)


def ungrouped_commands() -> typer.Typer:
    """Commands of one file that stand in the tree without a noun."""
    return typer.Typer(cls=CliGroup, rich_markup_mode=None)


def list_command(group: typer.Typer, *examples: str) -> Callable[[CommandFunction], CommandFunction]:
    """What a noun does when it stands alone; also its `list`."""

    return lambda function: default_command(group)(command(group, "list", *examples)(function))


def default_command(group: typer.Typer) -> Callable[[CommandFunction], CommandFunction]:
    """What a noun does when no verb follows."""

    def decorate(function: CommandFunction) -> CommandFunction:
        run = _unless_subcommand(with_session(function))
        group.callback(invoke_without_command=True, help=group.info.help)(run)
        return function

    return decorate


def command(group: typer.Typer, name: str, *examples: str) -> Callable[[CommandFunction], CommandFunction]:
    """A command whose first parameter is a Session; `--help` starts with the examples."""

    def decorate(function: CommandFunction) -> CommandFunction:
        group.command(name, cls=CliCommand, help=with_examples(function.__doc__, examples))(with_session(function))
        return function

    return decorate


def command_without_session(
    group: typer.Typer, name: str, *examples: str
) -> Callable[[CommandFunction], CommandFunction]:
    """A command that talks to no server and prints in its own way."""

    def decorate(function: CommandFunction) -> CommandFunction:
        group.command(name, cls=CliCommand, help=with_examples(function.__doc__, examples))(function)
        return function

    return decorate


def with_session(function: CommandFunction) -> CommandFunction:
    """*function* as Typer sees it: without its Session, with the options that make one."""

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
    """A parameter as it is; one that is a dataclass stands for its fields, each an option that several commands share."""
    group = parameter.annotation
    if not is_dataclass(group):
        yield parameter
        return
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _parameter(field.name, hints[field.name], field.default)


def _unless_subcommand(run: CommandFunction) -> CommandFunction:
    defaults: dict[str, Any] = {}

    def alone(ctx: typer.Context, **given: Any) -> Any:
        return None if ctx.invoked_subcommand else run(**defaults, **given)

    context = _parameter("ctx", typer.Context, inspect.Parameter.empty)
    # An argument of a noun would take the verb behind it for its value.
    everything = inspect.signature(run).parameters.values()
    options = [parameter for parameter in everything if not _is_argument(parameter)]
    defaults.update({parameter.name: parameter.default for parameter in everything if _is_argument(parameter)})
    return _with_signature(alone, [context, *options], run)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, ArgumentInfo) for each in get_args(parameter.annotation))


def _with_signature(run: Any, parameters: Sequence[inspect.Parameter], model: CommandFunction) -> CommandFunction:
    """*run* with a signature that Typer can read."""
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(named)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    run.__name__, run.__doc__ = model.__name__, model.__doc__
    introduced: CommandFunction = run
    return introduced


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
