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
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; stands in the audit.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many to show at most.")]


def noun(name: str, help_text: str, examples: Sequence[str] = ()) -> typer.Typer:
    """A noun of the tree; alone it lists."""
    return typer.Typer(name=name, help=with_examples(help_text, examples), rich_markup_mode=None)


def listing(group: typer.Typer, *examples: str) -> Callable[[Command], Command]:
    """What a noun does when it stands alone; also its `list`."""

    def decorate(function: Command) -> Command:
        run = with_session(function)
        group.command("list", help=with_examples(function.__doc__, examples))(run)
        help_text = group.info.help
        group.callback(invoke_without_command=True, help=help_text)(_unless_a_verb_follows(run))
        return function

    return decorate


def command(group: typer.Typer, name: str, *examples: str, **options: Any) -> Callable[[Command], Command]:
    """A command whose first parameter is a Session; `--help` starts with the examples."""

    def decorate(function: Command) -> Command:
        group.command(name, help=with_examples(function.__doc__, examples), **options)(with_session(function))
        return function

    return decorate


def with_examples(text: str | None, examples: Sequence[str]) -> str:
    """A help text that starts with examples. `\\b` keeps the lines as they are."""
    words = inspect.cleandoc(text or "")
    if not examples:
        return words
    summary, _, rest = words.partition("\n\n")
    shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    return "\n\n".join(part for part in (summary, shown, rest) if part)


def with_session(function: Command) -> Command:
    """*function* as Typer sees it: without its Session, with the options that make one."""

    def run(**given: Any) -> Any:
        output, as_json = given.pop("output"), given.pop("as_json")
        session = Session(given.pop("url"), Output.JSON if as_json else output, given.pop("times"))
        return function(session, **given)

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    common = [
        _parameter("output", OutputOption, None),
        _parameter("as_json", AsJson, False),
        _parameter("times", Times, None),
        _parameter("url", Url, None),
    ]
    return _introduced(run, [*own, *common], function)


def _unless_a_verb_follows(run: Command) -> Command:
    def alone(ctx: typer.Context, **given: Any) -> Any:
        return None if ctx.invoked_subcommand else run(**given)

    context = _parameter("ctx", typer.Context, inspect.Parameter.empty)
    return _introduced(alone, [context, *inspect.signature(run).parameters.values()], run)


def _introduced(run: Command, parameters: Sequence[inspect.Parameter], model: Command) -> Command:
    """*run* with a signature that Typer can read."""
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    run.__name__, run.__doc__ = model.__name__, model.__doc__
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
