"""How commands join the tree: each is given a Session, and has the options that every command has.

jobs = noun("jobs", "Jobs: what to run and when.")

@listing(jobs)
def list_jobs(session: Session, queue: Annotated[str | None, typer.Option()] = None) -> None: ...

@command(jobs, "pause")
def pause(session: Session, job: Annotated[str, typer.Argument()]) -> None:
    \"\"\"Let nothing of a job start. (The first line of the help; its examples stand in `examples`.)\"\"\"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from timeball.cli.branches import Leaf, Noun, with_examples
from timeball.cli.render import Output, TimeStyle
from timeball.cli.session import Session

Command = Callable[..., Any]

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server to talk to; TIMEBALL_URL, or else the database of this environment."),
]
OutputOption = Annotated[
    Output | None, typer.Option("-o", "--output", help="How to print; by itself a table for people, lines for pipes.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Times = Annotated[
    TimeStyle | None,
    typer.Option("--time", help="How to write instants; by itself relative for people, utc for pipes."),
]

# Options that several commands share.
DatabaseOf = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="Your program, if it names its own database: module:attribute.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; stands in the audit.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many to show at most.")]


def noun(name: str, help_text: str, examples: Sequence[str] = ()) -> typer.Typer:
    """A noun of the tree; alone it lists."""
    return typer.Typer(name=name, help=with_examples(help_text, examples), cls=Noun, rich_markup_mode=None)


def topic() -> typer.Typer:
    """Commands of one file that stand in the tree without a noun."""
    return typer.Typer(cls=Noun, rich_markup_mode=None)


def listing(group: typer.Typer, *examples: str) -> Callable[[Command], Command]:
    """What a noun does when it stands alone; also its `list`."""

    return lambda function: alone(group)(command(group, "list", *examples)(function))


def alone(group: typer.Typer) -> Callable[[Command], Command]:
    """What a noun does when no verb follows."""

    def decorate(function: Command) -> Command:
        run = _unless_a_verb_follows(with_session(function))
        group.callback(invoke_without_command=True, help=group.info.help)(run)
        return function

    return decorate


def command(group: typer.Typer, name: str, *examples: str) -> Callable[[Command], Command]:
    """A command whose first parameter is a Session; `--help` starts with the examples."""

    def decorate(function: Command) -> Command:
        group.command(name, cls=Leaf, help=with_examples(function.__doc__, examples))(with_session(function))
        return function

    return decorate


def plain(group: typer.Typer, name: str, *examples: str) -> Callable[[Command], Command]:
    """A command that talks to no server and prints in its own way."""

    def decorate(function: Command) -> Command:
        group.command(name, cls=Leaf, help=with_examples(function.__doc__, examples))(function)
        return function

    return decorate


def with_session(function: Command) -> Command:
    """*function* as Typer sees it: without its Session, with the options that make one."""

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }

    def run(**given: Any) -> Any:
        output, as_json = given.pop("output"), given.pop("as_json")
        session = Session(given.pop("url"), Output.JSON if as_json else output, given.pop("times"))
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return function(session, **given)

    common = [
        _parameter("output", OutputOption, None),
        _parameter("as_json", AsJson, False),
        _parameter("times", Times, None),
        _parameter("url", Url, None),
    ]
    return _introduced(run, [*chain.from_iterable(map(_expanded, own)), *common], function)


def _expanded(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """A parameter as it is; one that is a dataclass stands for its fields, each an option that several commands share."""
    group = parameter.annotation
    if not is_dataclass(group):
        yield parameter
        return
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _parameter(field.name, hints[field.name], field.default)


def _unless_a_verb_follows(run: Command) -> Command:
    defaults: dict[str, Any] = {}

    def alone(ctx: typer.Context, **given: Any) -> Any:
        return None if ctx.invoked_subcommand else run(**defaults, **given)

    context = _parameter("ctx", typer.Context, inspect.Parameter.empty)
    # An argument of a noun would take the verb behind it for its value.
    everything = inspect.signature(run).parameters.values()
    options = [parameter for parameter in everything if not _is_argument(parameter)]
    defaults.update({parameter.name: parameter.default for parameter in everything if _is_argument(parameter)})
    return _introduced(alone, [context, *options], run)


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, ArgumentInfo) for each in get_args(parameter.annotation))


def _introduced(run: Any, parameters: Sequence[inspect.Parameter], model: Command) -> Command:
    """*run* with a signature that Typer can read."""
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(named)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    run.__name__, run.__doc__ = model.__name__, model.__doc__
    introduced: Command = run
    return introduced


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
