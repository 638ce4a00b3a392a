"""`timeball run`: one thing, now, later or again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.following import show_end, watched
from timeball.cli.job_options import Arguments, JobOptions
from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import command, topic
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

EXAMPLES = (
    "timeball run test.echo hello=world",
    "timeball run test.echo hello=world --wait",
    "timeball run http.webhook url=https://example.com/hook --in 10m --queue web",
    'timeball run test.log message=hello --cron "0 6 * * *" --name morning',
)

commands = topic()

_COLUMNS = [
    Column("job", "id"),
    Column("name"),
    Column("execution", "execution_id"),
    Column("handler"),
    Column("queue"),
    Column("next run", "next_run_at", Kind.INSTANT),
]


@command(commands, "run", *EXAMPLES)
def run_handler(
    session: Session,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="What runs, such as test.echo or app.mail:send.")],
    options: JobOptions,
    arguments: Arguments = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the job; schedules need one.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit code 6 if it did not succeed.")
    ] = False,
) -> None:
    """Run a handler: now, once later (--in, --at), or by a schedule (--cron, --every)."""
    fields: Any = options.fields(arguments)
    if wait and ("schedule" in fields or "interval_seconds" in fields):
        raise InvalidInput("a schedule has no end to wait for", field="wait", hint="leave --wait out")
    session.talk(lambda client: _run(client, session, handler, name, fields, wait))


async def _run(client: AsyncClient, session: Session, handler: str, name: str | None, fields: Any, wait: bool) -> None:
    made = await client.jobs.create(handler, name, **fields)
    session.printer.warn(made)
    execution_id = made.execution_id
    if execution_id is None and name is not None and made.kind == "manual":
        execution_id = (await client.jobs.trigger(made.id)).id
    if not wait or execution_id is None:
        session.printer.details(made.model_dump(mode="json") | {"execution_id": execution_id}, _COLUMNS)
        return
    show_end(session, await watched(client, session, execution_id))
