"""`timeball top`: the numbers of this moment on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.render import Output, as_document
from timeball.cli.session import Session
from timeball.cli.tree import command, topic
from timeball.cli.words import one_line, read_instant, span_words
from timeball.domain.wording import counted

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Once = Annotated[bool, typer.Option("--once", help="Print one frame and end.")]
Every = Annotated[float, typer.Option("--every", min=0.5, max=60, help="Seconds between two frames.")]

_MOST_LINES = 10
# Home, and clear what is below: a screen that is cleared whole flickers.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

commands = topic()


@command(commands, "top", "timeball top --once")
def top(session: Session, once: Once = False, every: Every = 2.0) -> None:
    """Show what runs, waits, is late and is dead, with queues, workers and the longest running; live on a terminal."""
    session.printer.refuse_csv("top")
    is_live = session.printer.is_terminal and not once and not session.printer.is_for_programs

    async def watch(client: AsyncClient) -> None:
        from asyncio import sleep

        while True:
            found = await _look(client)
            _show(session, found, is_live=is_live)
            if not is_live:
                return
            await sleep(every)

    session.talk(watch)


async def _look(client: AsyncClient) -> dict[str, Any]:
    running = (await client.executions.list(status="running", limit=200)).data
    begun = sorted((run for run in running if run.started_at is not None), key=lambda run: str(run.started_at))
    return {
        "metrics": as_document(await client.system.metrics()),
        "workers": [as_document(worker) for worker in await client.workers.list()],
        "longest_running": [as_document(run) for run in begun[:_MOST_LINES]],
    }


def _show(session: Session, found: dict[str, Any], *, is_live: bool) -> None:
    if session.printer.output in (Output.JSON, Output.JSONL):
        session.printer.json(found)
        return
    lines = list(frame(found))
    if is_live:
        shown = "".join(f"{one_line(line)}{_CLEAR_LINE}\n" for line in lines)
        session.printer.screen(_HOME + shown + _CLEAR_REST)
    else:
        for line in lines:
            session.printer.words(line)


def frame(found: dict[str, Any]) -> Iterator[str]:
    """One screen, line by line."""
    metrics = found["metrics"]
    now, hour, nodes = metrics["now"], metrics["last_hour"], metrics["nodes"]
    share = "-" if hour["failure_share"] is None else f"{hour['failure_share']:.1%}"
    slots = f"{nodes['busy']} of {nodes['slots']} slots busy"
    workers, schedulers = counted(nodes["workers"], "worker"), counted(nodes["schedulers"], "scheduler")
    oldest = span_words(now["oldest_seconds"] * 1000) if now["queued"] else "-"
    yield f"{metrics['at'][:19]}Z   {workers}, {slots}, {schedulers}"
    yield (
        f"running {_count(now['running'])}   queued {_count(now['queued'])}   oldest {oldest}"
        f"   late {_count(now['late'])}   failed tries {share} (1 h)   dead {_count(now['dead'])}"
    )
    yield f"started late by (1 h)   {_percentiles(hour['lateness_seconds'])}      took   {_percentiles(hour['duration_seconds'])}"
    yield from _section("QUEUE", "DEPTH   RUNNING    OLDEST", map(_queue_words, metrics["queues"]))
    yield from _section("WORKER", "BUSY     SLOTS", map(_worker_words, found["workers"]))
    yield from _section("LONGEST RUNNING", "FOR", (_run_words(run, metrics["at"]) for run in found["longest_running"]))


def _section(title: str, columns: str, lines: Iterator[str]) -> Iterator[str]:
    shown = list(lines)
    yield ""
    yield f"{title:<44} {columns}"
    yield from shown[:_MOST_LINES] or ["  none"]
    if len(shown) > _MOST_LINES:
        yield f"  and {len(shown) - _MOST_LINES} more"


def _queue_words(queue: dict[str, Any]) -> str:
    oldest = "" if queue["oldest_seconds"] is None else span_words(queue["oldest_seconds"] * 1000)
    name = queue["name"] + (" (paused)" if queue["is_paused"] else "")
    return f"  {name:<40} {_count(queue['depth']):>7} {queue['running']:>9} {oldest:>9}"


def _worker_words(worker: dict[str, Any]) -> str:
    name = worker["name"] + (" (draining)" if worker["draining"] else "")
    return f"  {name:<40} {worker['busy']:>6} {worker['slots']:>9}"


def _run_words(run: dict[str, Any], at: str) -> str:
    now, since = read_instant(at), read_instant(run["started_at"])
    span = "" if now is None or since is None else span_words(max((now - since).total_seconds(), 0) * 1000)
    return f"  {run['handler']:<40} {span:>5}   {run['id']}"


def _percentiles(found: dict[str, float | None]) -> str:
    return "  ".join(
        f"{name} {'-' if value is None else span_words(value * 1000)}" for name, value in sorted(found.items())
    )


def _count(number: int) -> str:
    return f"{number:,}" if number <= 10_000 else "over 10,000"
