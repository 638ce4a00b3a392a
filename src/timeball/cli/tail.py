"""`timeball tail`: what happens, a line each."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.render import STATE_STYLES, Output
from timeball.cli.session import Session
from timeball.cli.tree import command, topic
from timeball.cli.words import one_line, span_words
from timeball.domain.spans import parse_span

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Queue = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
Job = Annotated[str | None, typer.Option("--job", help="Only of this job, by id or name.")]
Types = Annotated[str | None, typer.Option("--types", help="Only these, by commas: execution.*,attempt.failed")]
Span = Annotated[str | None, typer.Option("--for", help="End after that long: 10m. By itself it goes on until Ctrl-C.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many events.")]

_MARKS = {
    "execution.started": ("●", "started"),
    "execution.succeeded": ("✓", "succeeded"),
    "execution.cancelled": ("-", "cancelled"),
    "execution.dead": ("✗", "dead"),
    "execution.skipped": ("-", "skipped"),
    "attempt.failed": ("!", "failed"),
    "attempt.timed_out": ("!", "timed out"),
    "attempt.lost": ("!", "lost"),
}
_STYLES = {"attempt": "yellow", "worker": "cyan", "scheduler": "cyan"}
_SIGNALS = {
    "gap": "(too much at once: some was left out)",
    "reset": "(the stream begins anew: some may have been left out)",
}

commands = topic()


@command(commands, "tail", "timeball tail --for 1s", "timeball tail --queue mail --types execution.dead --for 1s")
def tail(
    session: Session,
    queue: Queue = None,
    job: Job = None,
    types: Types = None,
    span: Span = None,
    limit: Limit = None,
) -> None:
    """Follow what happens: starts with their lateness, ends, failed tries, what operators do."""
    session.printer.refuse_csv("tail")
    wanted = {"queue": queue, "job": job, "types": types}
    seconds = None if span is None else parse_span(span, "--for").total_seconds()

    async def follow(client: AsyncClient) -> None:
        from asyncio import timeout

        if session.printer.is_terminal:
            session.printer.say("following what happens; Ctrl-C ends it")
        with suppress(TimeoutError):
            async with timeout(seconds):
                await _follow(client, session, wanted, limit)

    session.talk(follow)


async def _follow(client: AsyncClient, session: Session, wanted: dict[str, str | None], limit: int | None) -> None:
    shown = 0
    told = client.events(**{name: value for name, value in wanted.items() if value is not None})
    async with aclosing(told):
        async for event in told:
            _show(session, event)
            shown += event.type not in _SIGNALS
            if shown == limit:
                return


def _show(session: Session, event: Any) -> None:
    if event.type in _SIGNALS:
        session.printer.say(_SIGNALS[event.type])
    elif session.printer.output in (Output.JSON, Output.JSONL):
        session.printer.json_line(event.data)
    else:
        session.printer.styled(event_words(event.data), _style(event.type))


def event_words(event: dict[str, Any]) -> str:
    """An event as a line, its columns under those of the others."""
    mark, word = _MARKS.get(event["type"], ("·", event["type"]))
    clock = event["at"][11:23].rstrip("Z").ljust(12, "0")
    what = event["handler"] or ""
    columns = f"{clock} {mark} {word:<10} {_measure(event):>10}  {event['queue'] or '':<12} {what:<28}"
    return one_line(f"{columns} {event['subject']}{_reason(event)}")


def _measure(event: dict[str, Any]) -> str:
    data = event["data"]
    if (late := data.get("lateness_ms")) is not None:
        return f"+{span_words(late)}"
    lasted = data.get("duration_ms")
    return "" if lasted is None else span_words(lasted)


def _reason(event: dict[str, Any]) -> str:
    data = event["data"]
    said = data.get("error_type") or data.get("reason") or data.get("name")
    return f"  {said}" if said else ""


def _style(kind: str) -> str:
    subject, _, what = kind.partition(".")
    return _STYLES.get(subject) or STATE_STYLES.get(what, "none")
