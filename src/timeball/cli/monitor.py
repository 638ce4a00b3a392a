"""`timeball why`, `doctor`, `top` and `tail`: what happens, and why something does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.formatting import as_document, format_duration, parse_instant, single_line
from timeball.cli.output import STATE_STYLES, Column, ColumnKind, OutputFormat, Printer
from timeball.cli.session import CliSession
from timeball.cli.tree import command, ungrouped_commands
from timeball.domain.values.wording import counted, parse_duration
from timeball.errors import NotFound, SettingsError, StoreError, TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()


# `timeball why`: one sentence, then every gate.

Document = Mapping[str, Any]
Reference = Annotated[str, typer.Argument(metavar="JOB|EXECUTION", help="A job's name or id, or an execution's id.")]

_VERDICT_SIGNS = {"passed": "✓", "stopped": "✗", "not_asked": "–"}
_VERDICT_STYLES = {"passed": "green", "stopped": "bold red", "not_asked": "dim"}
_GATE_COLUMNS = [Column("verdict"), Column("gate", "name"), Column("sentence"), Column("advice"), Column("links")]


@command(commands, "why", "timeball why nightly", "timeball why RUN")
def show_why(session: CliSession, reference: Reference) -> None:
    """Say why something does not run: what stands in its way, and what to do about it."""
    found = session.talk(lambda client: _explain(client, reference))
    printer = session.printer
    if printer.output is OutputFormat.CSV:
        printer.rows(found["gates"], _GATE_COLUMNS)
        return
    if printer.is_for_programs:
        printer.details(found, [])
        return
    printer.styled(single_line(_title(found, printer)), "bold")
    printer.words(found["headline"])
    if not printer.is_terminal and printer.output is None:
        printer.rows(found["gates"], _GATE_COLUMNS)
        return
    # What has started or ended has passed them all: thirteen lines would say so thirteen times.
    if any(gate["verdict"] != "not_asked" for gate in found["gates"]):
        for gate in found["gates"]:
            _show_gate(gate, printer)


async def _explain(client: AsyncClient, reference: str) -> Any:
    """An execution's id says what it is; a bare id may be either; anything else is a job."""
    if not _is_a_job(reference):
        with suppress(NotFound):
            return as_document(await client.executions.explain(reference))
    return as_document(await client.jobs.explain(reference))


def _is_a_job(reference: str) -> bool:
    from uuid import UUID

    try:
        UUID(reference)
    except ValueError:
        return not reference.startswith("exe_")
    return False


def _title(found: Document, printer: Printer) -> str:
    parts = [found["job_name"] or found["job_id"], found["execution_id"], found["state"]]
    return " · ".join(part for part in (*parts, f"checked {printer.instant(found['checked_at'])}") if part)


def _show_gate(gate: Document, printer: Printer) -> None:
    verdict = gate["verdict"]
    printer.styled(
        single_line(f" {_VERDICT_SIGNS[verdict]} {gate['title']:<26} {gate['sentence']}"), _VERDICT_STYLES[verdict]
    )
    if gate["advice"] and verdict == "stopped":
        printer.words(f"     {gate['advice']}")


# `timeball doctor`: whether everything is in order, and what to type if not.

_STATUS_SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
_STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_CHECK_COLUMNS = [
    Column("status", kind=ColumnKind.STATE),
    Column("code"),
    Column("subject"),
    Column("found"),
    Column("advice"),
]

OnlyProblems = Annotated[bool, typer.Option("--problems", help="Only lines that are not ok.")]


@command(commands, "doctor", "timeball doctor", "timeball doctor --problems")
def show_doctor(session: CliSession, problems: OnlyProblems = False) -> None:
    """Look at everything, and say what to type. Exit code 1 if something fails."""
    found = _diagnose(session)
    lines = [line for line in found["lines"] if not (problems and line["status"] == "ok")]
    printer = session.printer
    if printer.is_for_programs or (not printer.is_terminal and printer.output is None):
        printer.rows(lines, _CHECK_COLUMNS, empty="everything is in order")
    else:
        _show_checks(lines, printer)
    raise typer.Exit(1 if found["status"] == "fail" else 0)


def _diagnose(session: CliSession) -> Any:
    """What the doctor says; if nobody could even look, why not."""
    try:
        return as_document(session.talk(lambda client: client.system.doctor()))
    except SettingsError as error:
        return _failed_diagnosis("settings", "settings", error, "change the variables named, or timeball.toml")
    except StoreError as error:
        return _failed_diagnosis("unreachable", "database", error, "timeball check says which database is meant")


def _failed_diagnosis(code: str, subject: str, error: TimeballError, advice: str) -> dict[str, Any]:
    found = " ".join(str(error).split())
    line = {"code": code, "status": "fail", "subject": subject, "found": found, "advice": advice}
    return {"status": "fail", "lines": [line | {"command": None, "target": None}]}


def _show_checks(lines: list[Mapping[str, Any]], printer: Printer) -> None:
    width = max((len(line["subject"]) for line in lines), default=0)
    for line in lines:
        printer.styled(
            single_line(f"  {_STATUS_SIGNS[line['status']]} {line['subject']:<{width}}  {line['found']}"),
            _STATUS_STYLES[line["status"]],
        )
        if line["advice"]:
            printer.words(f"      {line['advice']}")
    if not lines:
        printer.say("everything is in order")


# `timeball top`: the numbers of this moment on one screen.

Once = Annotated[bool, typer.Option("--once", help="Print one frame and end.")]
Every = Annotated[float, typer.Option("--every", min=0.5, max=60, help="Seconds between two frames.")]

_MAX_LINES = 10


# Home, and clear what is below: a screen that is cleared whole flickers.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


@command(commands, "top", "timeball top --once")
def top(session: CliSession, once: Once = False, every: Every = 2.0) -> None:
    """Show what runs, waits, is late and is dead, with queues, workers and the longest running; live on a terminal."""
    session.printer.refuse_csv("top")
    is_live = session.printer.is_terminal and not once and not session.printer.is_for_programs

    async def watch(client: AsyncClient) -> None:
        from asyncio import sleep

        while True:
            found = await _read_frame(client)
            _show_frame(session, found, is_live=is_live)
            if not is_live:
                return
            await sleep(every)

    session.talk(watch)


async def _read_frame(client: AsyncClient) -> dict[str, Any]:
    running = (await client.executions.list(status="running", limit=200)).data
    begun = sorted((run for run in running if run.started_at is not None), key=lambda run: str(run.started_at))
    return {
        "metrics": as_document(await client.system.metrics()),
        "workers": [as_document(worker) for worker in await client.workers.list()],
        "longest_running": [as_document(run) for run in begun[:_MAX_LINES]],
    }


def _show_frame(session: CliSession, found: dict[str, Any], *, is_live: bool) -> None:
    if session.printer.output in (OutputFormat.JSON, OutputFormat.JSONL):
        session.printer.json(found)
        return
    lines = list(frame(found))
    if is_live:
        shown = "".join(f"{single_line(line)}{_CLEAR_LINE}\n" for line in lines)
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
    oldest = format_duration(now["oldest_seconds"] * 1000) if now["queued"] else "-"
    yield f"{metrics['at'][:19]}Z   {workers}, {slots}, {schedulers}"
    yield (
        f"running {_count(now['running'])}   queued {_count(now['queued'])}   oldest {oldest}"
        f"   late {_count(now['late'])}   failed tries {share} (1 h)   dead {_count(now['dead'])}"
    )
    yield f"started late by (1 h)   {_percentiles(hour['lateness_seconds'])}      took   {_percentiles(hour['duration_seconds'])}"
    yield from _section("QUEUE", "DEPTH   RUNNING    OLDEST", map(_queue_line, metrics["queues"]))
    yield from _section("WORKER", "BUSY     SLOTS", map(_worker_line, found["workers"]))
    yield from _section("LONGEST RUNNING", "FOR", (_run_line(run, metrics["at"]) for run in found["longest_running"]))


def _section(title: str, columns: str, lines: Iterator[str]) -> Iterator[str]:
    shown = list(lines)
    yield ""
    yield f"{title:<44} {columns}"
    yield from shown[:_MAX_LINES] or ["  none"]
    if len(shown) > _MAX_LINES:
        yield f"  and {len(shown) - _MAX_LINES} more"


def _queue_line(queue: dict[str, Any]) -> str:
    oldest = "" if queue["oldest_seconds"] is None else format_duration(queue["oldest_seconds"] * 1000)
    name = queue["name"] + (" (paused)" if queue["is_paused"] else "")
    return f"  {name:<40} {_count(queue['depth']):>7} {queue['running']:>9} {oldest:>9}"


def _worker_line(worker: dict[str, Any]) -> str:
    name = worker["name"] + (" (draining)" if worker["draining"] else "")
    return f"  {name:<40} {worker['busy']:>6} {worker['slots']:>9}"


def _run_line(run: dict[str, Any], at: str) -> str:
    now, since = parse_instant(at), parse_instant(run["started_at"])
    span = "" if now is None or since is None else format_duration(max((now - since).total_seconds(), 0) * 1000)
    return f"  {run['handler']:<40} {span:>5}   {run['id']}"


def _percentiles(found: dict[str, float | None]) -> str:
    return "  ".join(
        f"{name} {'-' if value is None else format_duration(value * 1000)}" for name, value in sorted(found.items())
    )


def _count(number: int) -> str:
    return f"{number:,}" if number <= 10_000 else "over 10,000"


# `timeball tail`: what happens, a line each.

Queue = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
Job = Annotated[str | None, typer.Option("--job", help="Only of this job, by id or name.")]
Types = Annotated[str | None, typer.Option("--types", help="Only these, by commas: execution.*,attempt.failed")]
Span = Annotated[str | None, typer.Option("--for", help="End after that long: 10m. By itself it goes on until Ctrl-C.")]
EventLimit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many events.")]

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
_EVENT_STYLES = {"attempt": "yellow", "worker": "cyan", "scheduler": "cyan"}
_SIGNALS = {
    "gap": "(too much at once: some was left out)",
    "reset": "(the stream begins anew: some may have been left out)",
}


@command(commands, "tail", "timeball tail --for 1s", "timeball tail --queue mail --types execution.dead --for 1s")
def tail(
    session: CliSession,
    queue: Queue = None,
    job: Job = None,
    types: Types = None,
    span: Span = None,
    limit: EventLimit = None,
) -> None:
    """Follow what happens: starts with their lateness, ends, failed tries, what operators do."""
    session.printer.refuse_csv("tail")
    wanted = {"queue": queue, "job": job, "types": types}
    seconds = None if span is None else parse_duration(span, "--for").total_seconds()

    async def follow(client: AsyncClient) -> None:
        from asyncio import timeout

        if session.printer.is_terminal:
            session.printer.say("following what happens; Ctrl-C ends it")
        with suppress(TimeoutError):
            async with timeout(seconds):
                await _follow(client, session, wanted, limit)

    session.talk(follow)


async def _follow(client: AsyncClient, session: CliSession, wanted: dict[str, str | None], limit: int | None) -> None:
    shown = 0
    told = client.events(**{name: value for name, value in wanted.items() if value is not None})
    async with aclosing(told):
        async for event in told:
            _show_event(session, event)
            shown += event.type not in _SIGNALS
            if shown == limit:
                return


def _show_event(session: CliSession, event: Any) -> None:
    if event.type in _SIGNALS:
        session.printer.say(_SIGNALS[event.type])
    elif session.printer.output in (OutputFormat.JSON, OutputFormat.JSONL):
        session.printer.json_line(event.data)
    else:
        session.printer.styled(event_line(event.data), _event_style(event.type))


def event_line(event: dict[str, Any]) -> str:
    """An event as a line, its columns under those of the others."""
    mark, word = _MARKS.get(event["type"], ("·", event["type"]))
    clock = event["at"][11:23].rstrip("Z").ljust(12, "0")
    what = event["handler"] or ""
    columns = f"{clock} {mark} {word:<10} {_measure(event):>10}  {event['queue'] or '':<12} {what:<28}"
    return single_line(f"{columns} {event['subject']}{_reason(event)}")


def _measure(event: dict[str, Any]) -> str:
    data = event["data"]
    if (late := data.get("lateness_ms")) is not None:
        return f"+{format_duration(late)}"
    lasted = data.get("duration_ms")
    return "" if lasted is None else format_duration(lasted)


def _reason(event: dict[str, Any]) -> str:
    data = event["data"]
    said = data.get("error_type") or data.get("reason") or data.get("name")
    return f"  {said}" if said else ""


def _event_style(kind: str) -> str:
    subject, _, what = kind.partition(".")
    return _EVENT_STYLES.get(subject) or STATE_STYLES.get(what, "none")
