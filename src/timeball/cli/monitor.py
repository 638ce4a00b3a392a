"""`timeball why`, `doctor`, `top` and `tail`: what happens, and why something does not happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import read_moment
from timeball.cli.output import (
    STATE_STYLES,
    Column,
    ColumnKind,
    Document,
    OutputFormat,
    Printer,
    as_document,
    format_duration,
    parse_instant,
    single_line,
)
from timeball.cli.session import CliSession
from timeball.cli.tree import command, ungrouped_commands
from timeball.cli.views import progress_words
from timeball.domain.values.wording import counted, parse_duration
from timeball.errors import NotFound, SettingsError, StoreError, TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()

Reference = Annotated[
    str, typer.Argument(metavar="JOB|EXECUTION|GROUP", help="A job's name or id, or the id of an execution or a group.")
]

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="What became of a job at this instant, on the clock of its zone, or so long ago (2h), or ahead (+1d).",
    ),
]

_VERDICT_SIGNS = {"passed": "✓", "stopped": "✗", "not_asked": "–"}
_VERDICT_STYLES = {"passed": "green", "stopped": "bold red", "not_asked": "dim"}
_CAUSE_COLUMNS = [
    Column("depth", kind=ColumnKind.NUMBER),
    Column("kind"),
    Column("sentence"),
    Column("from", kind=ColumnKind.INSTANT),
    Column("until", kind=ColumnKind.INSTANT),
    Column("actor"),
    Column("ids"),
]
_WAIT_COLUMNS = [
    Column("part", kind=ColumnKind.NUMBER),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("id", lambda wait: wait["execution_id"] or wait["group_id"]),
    Column("stopped by"),
    Column("why", "headline"),
]
_GATE_COLUMNS = [Column("verdict"), Column("gate", "name"), Column("sentence"), Column("advice"), Column("links")]


@command(
    commands,
    "why",
    "timeball why nightly",
    "timeball why RUN",
    "timeball why GROUP",
    "timeball why nightly --at 2026-11-03T02:30",
)
def show_why(session: CliSession, reference: Reference, at: At = None) -> None:
    """Explain why a job, execution or group waits; with --at, what became of a job at an instant, or which gates will bind it."""
    if reference.startswith("grp_") and at is None:
        _show_group(session, reference)
        return
    moment = None if at is None else _moment(at)
    explanation = session.talk(lambda client: _explain(client, reference, moment))
    printer = session.printer
    if printer.output is OutputFormat.CSV:
        if at is None:
            printer.rows(explanation["gates"], _GATE_COLUMNS)
        else:
            printer.rows(explanation["because"], _CAUSE_COLUMNS)
        return
    if printer.is_for_programs:
        printer.details(explanation, [])
        return
    printer.styled(single_line(_title(explanation, printer)), "bold")
    printer.words(explanation["headline"])
    for cause in explanation["because"]:
        # The headline has the first ones.
        if cause["kind"] != "gate" and cause["sentence"] not in explanation["headline"]:
            printer.words(f"{'  ' * (cause['depth'] + 1)}{'because ' if cause['depth'] else ''}{cause['sentence']}")
    if not printer.is_terminal and printer.output is None:
        if explanation["gates"]:
            printer.rows(explanation["gates"], _GATE_COLUMNS)
        return
    # An execution that has started or ended has passed all gates: a line for each would say the same.
    if any(gate["verdict"] != "not_asked" for gate in explanation["gates"]):
        for gate in explanation["gates"]:
            _show_gate(gate, printer)


def _show_group(session: CliSession, reference: str) -> None:
    """For which parts a group waits, and why those have not ended."""
    explanation = session.talk(lambda client: client.groups.explain(reference))
    printer = session.printer
    if printer.output is OutputFormat.CSV:
        printer.rows(explanation.waits, _WAIT_COLUMNS)
        return
    if printer.is_for_programs:
        printer.details(explanation, [])
        return
    title = f"{explanation.group_id} · {explanation.state} · checked {printer.instant(explanation.checked_at)}"
    printer.styled(single_line(title), "bold")
    printer.words(explanation.headline)
    if not printer.is_terminal and printer.output is None:
        printer.rows(explanation.waits, _WAIT_COLUMNS, empty="")
        return
    for wait in explanation.waits:
        sign, style = ("✗", "bold red") if wait.stopped_by else ("–", "dim")
        name = f"{wait.handler} {wait.execution_id}" if wait.execution_id else wait.group_id or ""
        printer.styled(single_line(f" {sign} {wait.part} {name}"), style)
        printer.words(f"     {wait.headline}")


def _moment(text: str) -> datetime | str:
    """A time is read on the clock of the job's zone, by the server; a span, such as 2h or +1d, is counted from now."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return read_moment(text, "--at")
    return text


async def _explain(client: AsyncClient, reference: str, at: datetime | str | None = None) -> Any:
    """Explain an execution or a job. An id with a prefix says which; a bare UUID may be either; anything else is a job's name."""
    if at is not None:
        return as_document(await client.jobs.explain(reference, at=at))
    if not _names_a_job(reference):
        with suppress(NotFound):
            return as_document(await client.executions.explain(reference))
    return as_document(await client.jobs.explain(reference))


def _names_a_job(reference: str) -> bool:
    from uuid import UUID

    try:
        UUID(reference)
    except ValueError:
        return not reference.startswith("exe_")
    return False


def _title(explanation: Document, printer: Printer) -> str:
    parts = [explanation["job_name"] or explanation["job_id"], explanation["execution_id"], explanation["state"]]
    return " · ".join(part for part in (*parts, f"checked {printer.instant(explanation['checked_at'])}") if part)


def _show_gate(gate: Document, printer: Printer) -> None:
    verdict = gate["verdict"]
    printer.styled(
        single_line(f" {_VERDICT_SIGNS[verdict]} {gate['title']:<27} {gate['sentence']}"), _VERDICT_STYLES[verdict]
    )
    if gate["advice"] and verdict == "stopped":
        printer.words(f"     {gate['advice']}")


_STATUS_SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
_STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_CHECK_COLUMNS = [
    Column("status", kind=ColumnKind.STATE),
    Column("code"),
    Column("subject"),
    Column("found"),
    Column("advice"),
]

OnlyProblems = Annotated[bool, typer.Option("--problems", help="Show only the lines that are not ok.")]


@command(commands, "doctor", "timeball doctor", "timeball doctor --problems")
def show_doctor(session: CliSession, problems: OnlyProblems = False) -> None:
    """Check the whole installation, with advice for each problem. Exit code 1 if a check fails."""
    diagnosis = _diagnose(session)
    lines = [line for line in diagnosis["lines"] if not (problems and line["status"] == "ok")]
    printer = session.printer
    if printer.is_for_programs or (not printer.is_terminal and printer.output is None):
        printer.rows(lines, _CHECK_COLUMNS, empty="no problems found")
    else:
        _show_checks(lines, printer)
    raise typer.Exit(1 if diagnosis["status"] == "fail" else 0)


def _diagnose(session: CliSession) -> Any:
    """The checks of the server; if settings or database keep them from running, that one line."""
    try:
        return as_document(session.talk(lambda client: client.system.doctor()))
    except SettingsError as error:
        return _failed_diagnosis("settings", "settings", error, "change the variables that are named, or timeball.toml")
    except StoreError as error:
        return _failed_diagnosis("unreachable", "database", error, "timeball check shows which database is used")


def _failed_diagnosis(code: str, subject: str, error: TimeballError, advice: str) -> dict[str, Any]:
    message = " ".join(str(error).split())
    line = {"code": code, "status": "fail", "subject": subject, "found": message, "advice": advice}
    return {"status": "fail", "lines": [line | {"command": None, "target": None}]}


def _show_checks(lines: list[Document], printer: Printer) -> None:
    width = max((len(line["subject"]) for line in lines), default=0)
    for line in lines:
        printer.styled(
            single_line(f"  {_STATUS_SIGNS[line['status']]} {line['subject']:<{width}}  {line['found']}"),
            _STATUS_STYLES[line["status"]],
        )
        if line["advice"]:
            printer.words(f"      {line['advice']}")
    if not lines:
        printer.say("no problems found")


Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
Every = Annotated[float, typer.Option("--every", min=0.5, max=60, help="Seconds between frames.")]

_MAX_LINES = 10
# Go to the top, and clear the rest of each line: a screen that is cleared at once flickers.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


@command(commands, "top", "timeball top --once")
def top(session: CliSession, once: Once = False, every: Every = 2.0) -> None:
    """Show what is running, queued, late and dead, live. With queues, workers and the longest executions."""
    session.printer.refuse_csv("top")
    is_live = session.printer.is_terminal and not once and not session.printer.is_for_programs

    async def watch(client: AsyncClient) -> None:
        from asyncio import sleep

        while True:
            _show_frame(session, await _read_frame(client), is_live=is_live)
            if not is_live:
                return
            await sleep(every)

    session.talk(watch)


async def _read_frame(client: AsyncClient) -> dict[str, Any]:
    running = (await client.executions.list(status="running", limit=200)).data
    by_start = sorted((run for run in running if run.started_at is not None), key=lambda run: str(run.started_at))
    return {
        "metrics": as_document(await client.system.metrics()),
        "workers": [as_document(worker) for worker in await client.workers.list()],
        "longest_running": [as_document(run) for run in by_start[:_MAX_LINES]],
    }


def _show_frame(session: CliSession, state: dict[str, Any], *, is_live: bool) -> None:
    if session.printer.output in (OutputFormat.JSON, OutputFormat.JSONL):
        session.printer.json(state)
        return
    lines = list(frame(state))
    if is_live:
        text = "".join(f"{single_line(line)}{_CLEAR_LINE}\n" for line in lines)
        session.printer.screen(_HOME + text + _CLEAR_REST)
    else:
        for line in lines:
            session.printer.words(line)


def frame(state: dict[str, Any]) -> Iterator[str]:
    """One screen, line by line."""
    metrics = state["metrics"]
    now, hour, nodes = metrics["now"], metrics["last_hour"], metrics["nodes"]
    share = "-" if hour["failure_share"] is None else f"{hour['failure_share']:.1%}"
    slots = f"{nodes['busy']} of {nodes['slots']} slots busy"
    workers, schedulers = counted(nodes["workers"], "worker"), counted(nodes["schedulers"], "scheduler")
    oldest = format_duration(now["oldest_seconds"] * 1000) if now["queued"] else "-"
    yield f"{metrics['at'][:19]}Z   {workers}, {slots}, {schedulers}"
    yield (
        f"running {_count(now['running'])}   queued {_count(now['queued'])}   oldest {oldest}"
        f"   late {_count(now['late'])}   failed attempts {share} (1 h)   dead {_count(now['dead'])}"
    )
    yield f"started late by (1 h)   {_percentiles(hour['lateness_seconds'])}"
    yield f"took (1 h)              {_percentiles(hour['duration_seconds'])}"
    yield from _section("QUEUE", "DEPTH   RUNNING    OLDEST", map(_queue_line, metrics["queues"]))
    yield from _section("WORKER", "BUSY     SLOTS", map(_worker_line, state["workers"]))
    yield from _section("LONGEST RUNNING", "FOR", (_run_line(run, metrics["at"]) for run in state["longest_running"]))


def _section(title: str, columns: str, lines: Iterator[str]) -> Iterator[str]:
    rows = list(lines)
    yield ""
    yield f"{title:<44} {columns}"
    yield from rows[:_MAX_LINES] or ["  none"]
    if len(rows) > _MAX_LINES:
        yield f"  and {len(rows) - _MAX_LINES} more"


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
    return f"  {run['handler']:<40} {span:>5}   {run['id']}   {progress_words(run['progress'])}".rstrip()


def _percentiles(values: dict[str, float | None]) -> str:
    return "  ".join(
        f"{name} {'-' if value is None else format_duration(value * 1000)}" for name, value in sorted(values.items())
    )


def _count(number: int) -> str:
    return f"{number:,}" if number <= 10_000 else "over 10,000"


Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
Job = Annotated[str | None, typer.Option("--job", help="Only this job, by name or id.")]
Types = Annotated[
    str | None, typer.Option("--types", help="Only these events, with commas: execution.*,attempt.failed")
]
Span = Annotated[str | None, typer.Option("--for", help="Stop after this long, such as 10m. Default: until Ctrl-C.")]
EventLimit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many events.")]

_MARKS = {
    "execution.started": ("●", "started"),
    "execution.progress": ("◔", "progress"),
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
    "gap": "(too many events at once: some are missing)",
    "reset": "(the stream has restarted: some events may be missing)",
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
    """Follow events as they happen. Events are starts with their lateness, ends, failed attempts, and actions of operators."""
    session.printer.refuse_csv("tail")
    filters = {"queue": queue, "job": job, "types": types}
    seconds = None if span is None else parse_duration(span, "--for").total_seconds()

    async def follow(client: AsyncClient) -> None:
        from asyncio import timeout

        if session.printer.is_terminal:
            session.printer.say("following events; Ctrl-C stops")
        with suppress(TimeoutError):
            async with timeout(seconds):
                await _follow(client, session, filters, limit)

    session.talk(follow)


async def _follow(client: AsyncClient, session: CliSession, filters: dict[str, str | None], limit: int | None) -> None:
    number = 0
    events = client.events(**{name: value for name, value in filters.items() if value is not None})
    async with aclosing(events):
        async for event in events:
            _show_event(session, event)
            number += event.type not in _SIGNALS
            if number == limit:
                return


def _show_event(session: CliSession, event: Any) -> None:
    if event.type in _SIGNALS:
        session.printer.say(_SIGNALS[event.type])
    elif session.printer.output in (OutputFormat.JSON, OutputFormat.JSONL):
        session.printer.json_line(event.data)
    else:
        session.printer.styled(event_line(event.data), _event_style(event.type))


def event_line(event: dict[str, Any]) -> str:
    """An event as a line with columns of fixed width."""
    mark, word = _MARKS.get(event["type"], ("·", event["type"]))
    clock = event["at"][11:23].rstrip("Z").ljust(12, "0")
    handler = event["handler"] or ""
    columns = f"{clock} {mark} {word:<10} {_measure(event):>9}  {event['subject']:<30} {handler}"
    return single_line(f"{columns}  {event['queue'] or ''}{_reason(event)}".rstrip())


def _measure(event: dict[str, Any]) -> str:
    data = event["data"]
    if (late := data.get("lateness_ms")) is not None:
        return f"+{format_duration(late)}"
    duration = data.get("duration_ms")
    return "" if duration is None else format_duration(duration)


def _reason(event: dict[str, Any]) -> str:
    data = event["data"]
    reason = data.get("error_type") or data.get("reason") or data.get("name") or progress_words(data.get("progress"))
    return f"  {reason}" if reason else ""


def _event_style(kind: str) -> str:
    subject, _, state = kind.partition(".")
    return _EVENT_STYLES.get(subject) or STATE_STYLES.get(state, "none")
