"""`timeball plan` and `timeball apply`: what the schedules declared in a program would change, and doing it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import Reason, Yes, command, topic

Program = Annotated[
    str, typer.Argument(metavar="APP", help="Where your schedules are: module:attribute, such as app:tb.")
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete what this program declared once and declares no more.")
]

_COLUMNS = [
    Column("action", kind=Kind.STATE),
    Column("name"),
    Column("changes", lambda step: "; ".join(f"{name}: {_values(one)}" for name, one in step["changes"].items())),
    Column("next before", lambda step: step["next_before"][:1], Kind.TEXT),
    Column("next after", lambda step: step["next_after"][:1], Kind.TEXT),
]

commands = topic()


@command(commands, "plan", "timeball plan app:tb", "timeball plan app:tb --prune --json")
def plan(session: Session, program: Program, prune: Prune = False) -> None:
    """Show what the schedules declared in a program would change, with fire times before and after; changes nothing."""
    show_plan(session, _synced(session, program, prune=prune, dry_run=True))


@command(commands, "apply", "timeball apply app:tb --yes")
def apply(session: Session, program: Program, prune: Prune = False, yes: Yes = False, reason: Reason = None) -> None:
    """Make the schedules declared in a program jobs, or bring those of the same names up to date."""
    if not yes:
        planned = _synced(session, program, prune=prune, dry_run=True)
        show_plan(session, planned)
        session.printer.confirm(f"{summary(planned)}. Do it?", yes=yes)
    show_plan(session, _synced(session, program, prune=prune, dry_run=False, reason=reason))


def _synced(session: Session, reference: str, *, prune: bool, dry_run: bool, reason: str | None = None) -> Any:
    from timeball.loading import load_app

    declared = load_app(reference)
    groups: dict[str, list[dict[str, Any]]] = {}
    for origin, spec in declared.declarations():
        groups.setdefault(origin, []).append(_document(spec))

    async def sync(client: Any) -> list[Any]:
        return [
            await client.jobs.sync(jobs, origin, prune=prune, dry_run=dry_run, reason=reason)
            for origin, jobs in groups.items()
        ]

    return session.talk(sync, declared.settings)


def _document(spec: Any) -> dict[str, Any]:
    """A declared job as the API takes it: what is as it always is need not be said.

    What its handler declares is said in any case, and nothing is checked again: the program knows better than what was deployed last.
    """
    import orjson

    from timeball.domain.contract import OPTION_FIELDS
    from timeball.domain.job import SPEC_FIELDS, JobSpec

    usual = JobSpec(handler=spec.handler)
    named = {name: getattr(spec, name) for name in (*SPEC_FIELDS, "handler", "payload")}
    always = {"handler", *OPTION_FIELDS}
    said = {name: value for name, value in named.items() if name in always or value != getattr(usual, name)}
    said["unchecked"] = True
    document: dict[str, Any] = orjson.loads(orjson.dumps(said, default=_plain, option=orjson.OPT_UTC_Z))
    return document


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | frozenset | set) else str(value)


def show_plan(session: Session, results: list[Any]) -> None:
    """What is done to each job, or would be."""
    steps = [step for result in results for step in result.jobs]
    session.printer.rows(steps, _COLUMNS, empty="no jobs are declared")
    for result in results:
        session.printer.warn(result)
    session.printer.say(summary(results))


def summary(results: list[Any]) -> str:
    """How many are created, changed, deleted and left."""
    would = "would be " if any(result.dry_run for result in results) else ""
    number = {
        name: sum(getattr(result, name) for result in results) for name in ("created", "changed", "deleted", "left")
    }
    return f"{number['created']} {would}created, {number['changed']} changed, {number['deleted']} deleted, {number['left']} left"


def _values(change: Any) -> str:
    return f"{change['before']} -> {change['after']}"
