"""`timeball workers`, `handlers` and `queues`: what runs executions, and what waits to be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import UntilOption, read_moment_ahead
from timeball.cli.output import Column, ColumnKind, Document
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Reason, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient

workers = command_group(
    "workers",
    "Workers and schedulers that are alive.",
    ["timeball workers", "timeball workers drain WORKER --yes"],
)

NodeRef = Annotated[str, typer.Argument(metavar="WORKER", help="The id of a worker or scheduler, wrk_... or sch_...")]

_NODE_COLUMNS = [
    Column("id"),
    Column("kind"),
    Column("name"),
    Column(
        "busy", lambda node: f"{node['busy']}/{node['slots']}" if node["kind"] == "worker" else "", ColumnKind.NUMBER
    ),
    Column("queues", lambda node: "all" if node["queues"] is None else node["queues"]),
    Column("state", lambda node: "draining" if node["draining"] else "alive", ColumnKind.STATE),
    Column("seen", "renewed_at", ColumnKind.INSTANT),
    Column("version"),
]
_NODE_DETAILS = [
    *_NODE_COLUMNS,
    Column("started", "started_at", ColumnKind.INSTANT),
    Column("handlers"),
    Column("shards"),
]


@list_command(workers, "timeball workers list", "timeball workers list --all")
def list_workers(
    session: CliSession,
    all_: Annotated[bool, typer.Option("--all", help="List schedulers too.")] = False,
) -> None:
    """List the workers that are alive."""

    async def read(client: AsyncClient) -> list[Any]:
        return [*await client.workers.list(), *(await client.workers.schedulers() if all_ else [])]

    empty = "no worker is alive; start one with: timeball worker app:tb"
    session.printer.rows(session.talk(read), _NODE_COLUMNS, empty=empty)


@command(workers, "show", "timeball workers show WORKER")
def show_worker(session: CliSession, worker: NodeRef) -> None:
    """Show one worker or scheduler. With its handlers or its shards."""
    session.printer.details(session.talk(lambda client: client.workers.get(worker)), _NODE_DETAILS)


@command(workers, "drain", "timeball workers drain WORKER --yes")
def drain_worker(session: CliSession, worker: NodeRef, reason: Reason = None, yes: Yes = False) -> None:
    """Drain a worker or scheduler. It finishes what it runs, takes nothing more, and exits."""

    async def drain(client: AsyncClient) -> Any:
        node = await client.workers.get(worker)
        session.printer.confirm(f"Drain {node.name}, which runs {node.busy} executions?", yes=yes)
        return await client.workers.drain(node.id, reason)

    session.printer.details(session.talk(drain), _NODE_DETAILS)


handlers = command_group(
    "handlers",
    "Handlers: what can be run, and which payload each takes.",
    ["timeball handlers", "timeball handlers show http.webhook"],
)

HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")]

_HANDLER_COLUMNS = [
    Column("name"),
    Column("workers", kind=ColumnKind.NUMBER),
    Column("queue", lambda handler: (handler["options"] or {}).get("queue")),
    Column("description"),
]
_HANDLER_DETAILS = [
    Column("name"),
    Column("doc", lambda handler: handler["doc"] or handler["description"]),
    Column("takes", lambda handler: _parameters(handler["payload_schema"])),
    Column("example"),
    Column(
        "options", lambda handler: ", ".join(f"{k}={_option_text(v)}" for k, v in (handler["options"] or {}).items())
    ),
    Column("run style"),
    Column("needs role"),
    Column("versions", lambda handler: "; ".join(map(_version_text, handler["versions"]))),
]


@list_command(handlers, "timeball handlers list", "timeball handlers list -o json")
def list_handlers(session: CliSession, limit: Limit = 200) -> None:
    """List the handlers. They are built in, come with installed packages, or belong to workers."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.handlers.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(read), _HANDLER_COLUMNS, empty="no handlers")


@command(handlers, "show", "timeball handlers show http.webhook", "timeball handlers show http.webhook --json")
def show_handler(session: CliSession, handler: HandlerName) -> None:
    """Show one handler. With its payload, the options of its jobs, and which workers have which version."""
    session.printer.details(session.talk(lambda client: client.handlers.get(handler)), _HANDLER_DETAILS)


def _parameters(schema: Any) -> str:
    fields = (schema or {}).get("properties", {})
    required = set((schema or {}).get("required", ()))
    return ", ".join(
        f"{name}: {_schema_type(field)}{'' if name in required else ' (optional)'}" for name, field in fields.items()
    )


def _schema_type(field: Any) -> str:
    if not isinstance(field, dict):
        return "anything"
    if "anyOf" in field:
        return " or ".join(map(_schema_type, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "anything"))


def _option_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _version_text(version: Any) -> str:
    label = version["fingerprint"][:8] + (" newest" if version["is_newest"] else "")
    return f"{label}: {', '.join(version['workers']) or 'no living worker'}"


queues = command_group(
    "queues", "Queues: what waits, what runs, what is paused.", ["timeball queues", "timeball queues pause mail"]
)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]

_QUEUE_COLUMNS = [
    Column("name"),
    Column("state", lambda queue: "paused" if queue["is_paused"] else "active", ColumnKind.STATE),
    Column("depth", kind=ColumnKind.NUMBER),
    Column("running", kind=ColumnKind.NUMBER),
    Column("max running", kind=ColumnKind.NUMBER),
    Column("oldest", "oldest_at", ColumnKind.INSTANT),
    Column("expected", lambda queue: _expected(queue)),
    Column("paused until", "paused_until", ColumnKind.INSTANT),
    Column("reason", "pause_reason"),
]


@list_command(queues, "timeball queues", "timeball queues list -o json")
def list_queues(session: CliSession) -> None:
    """List the queues with executions, a pause or a limit."""
    session.printer.rows(
        session.talk(lambda client: client.queues.list()),
        _QUEUE_COLUMNS,
        empty="no queue has waiting or running executions",
    )


@command(queues, "show", "timeball queues show mail")
def show_queue(session: CliSession, queue: QueueName) -> None:
    """Show one queue."""
    session.printer.details(session.talk(lambda client: client.queues.get(queue)), _QUEUE_COLUMNS)


@command(
    queues,
    "pause",
    'timeball queues pause mail --reason "mail server down"',
    "timeball queues pause mail --until mon-08:00",
)
def pause_queue(session: CliSession, queue: QueueName, until: UntilOption = None, reason: Reason = None) -> None:
    """Pause a queue: nothing starts; running executions go on."""
    end = None if until is None else read_moment_ahead(until, "--until")
    session.printer.details(session.talk(lambda client: client.queues.pause(queue, reason, end)), _QUEUE_COLUMNS)


@command(queues, "resume", "timeball queues resume mail")
def resume_queue(session: CliSession, queue: QueueName, reason: Reason = None) -> None:
    """Resume a paused queue."""
    session.printer.details(session.talk(lambda client: client.queues.resume(queue, reason)), _QUEUE_COLUMNS)


@command(queues, "limit", "timeball queues limit mail 10", "timeball queues limit mail none")
def limit_queue(
    session: CliSession,
    queue: QueueName,
    number: Annotated[str, typer.Argument(metavar="N|none", help="How many may run at once; none removes the limit.")],
    reason: Reason = None,
) -> None:
    """Limit how many executions of a queue run at once. The limit holds across all workers."""
    limit = _limit(number)
    session.printer.details(session.talk(lambda client: client.queues.limit(queue, limit, reason)), _QUEUE_COLUMNS)


@command(
    queues,
    "expect",
    "timeball queues expect mail --max-oldest-wait 5m --must-be-served",
    "timeball queues expect mail --max-oldest-wait none",
)
def expect_of_queue(
    session: CliSession,
    queue: QueueName,
    wait: Annotated[
        str | None,
        typer.Option("--max-oldest-wait", help="Nothing waits in it for longer, such as 5m; none expects nothing."),
    ] = None,
    served: Annotated[
        bool | None, typer.Option("--must-be-served/--not-served", help="Whether a worker has to serve it.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Say what is expected of a queue. An alert opens while it is not so."""
    if wait is None and served is None:
        from timeball.errors import InvalidInput

        raise InvalidInput(
            "nothing is expected, expected --max-oldest-wait or --must-be-served", field="max_oldest_wait"
        )
    span = ... if wait is None else None if wait == "none" else wait
    changed = session.talk(
        lambda client: client.queues.expect(queue, max_oldest_wait=span, must_be_served=served, reason=reason)
    )
    session.printer.details(changed, _QUEUE_COLUMNS)


@command(queues, "purge", "timeball queues purge mail --confirm mail")
def purge_queue(
    session: CliSession,
    queue: QueueName,
    confirm: Annotated[str | None, typer.Option("--confirm", help="The name of the queue again.")] = None,
    reason: Reason = None,
) -> None:
    """Cancel all queued executions of a queue. Running executions and schedules go on."""
    if confirm is None:
        confirm = session.printer.ask(
            f"This cancels all queued executions of {queue}. Type its name to continue:", "--confirm"
        )
    confirmation = confirm
    with session.printer.progress("executions cancelled") as advance:
        purged = session.talk(lambda client: client.queues.purge(queue, confirm=confirmation, reason=reason))
        advance(purged.cancelled)
    session.printer.details(purged, [Column("queue"), Column("cancelled")])


def _expected(queue: Document) -> str:
    """What is expected of a queue, in a few words: `oldest waits at most 5m, served`."""
    from timeball.domain.values.wording import format_duration, parse_duration

    seconds = queue["max_oldest_wait_seconds"]
    wait = [] if seconds is None else [f"oldest waits at most {format_duration(parse_duration(seconds))}"]
    return ", ".join([*wait, *(["served"] if queue["must_be_served"] else [])])


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        from timeball.domain.values.field_errors import unexpected_value

        raise unexpected_value("the limit", text, "a whole number from 1 on, or none", field="max_running")
    return int(text)
