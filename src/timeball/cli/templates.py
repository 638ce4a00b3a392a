"""`timeball templates`: jobs to create other jobs from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import Arguments, JobFlags, read_pairs
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Yes, command, command_group, list_command
from timeball.cli.views import JOB_DETAILS

if TYPE_CHECKING:
    from timeball.client import AsyncClient

templates = command_group(
    "templates",
    "Templates: patterns to create jobs from.",
    ["timeball templates", "timeball templates use welcome to=a@b.co --in 10m"],
)

TemplateRef = Annotated[str, typer.Argument(metavar="TEMPLATE", help="A template's name or id.")]

_COLUMNS = [
    Column("name"),
    Column("handler", "job.handler"),
    Column("variables"),
    Column("description"),
    Column("updated", "updated_at", ColumnKind.INSTANT),
]
_DETAILS = [
    Column("id"),
    *_COLUMNS,
    Column("job"),
    Column("version"),
    Column("created", "created_at", ColumnKind.INSTANT),
]


@list_command(templates, "timeball templates list")
def list_templates(session: CliSession, limit: Limit = 50) -> None:
    """List the templates."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.templates.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no templates yet")


@command(templates, "show", "timeball templates show welcome")
def show_template(session: CliSession, template: TemplateRef) -> None:
    """Show one template."""
    session.printer.details(session.talk(lambda client: client.templates.get(template)), _DETAILS)


@command(templates, "create", "timeball templates create greeting test.echo to={{to}} --queue mail")
def create_template(
    session: CliSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the template.")],
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler to run.")],
    options: JobFlags,
    arguments: Arguments = None,
) -> None:
    """Create a template. Each `{{variable}}` in its payload gets a value when the template is used."""
    fields = options.fields(arguments)
    description = fields.pop("description", None)
    job = {"handler": handler, **fields}
    template = session.talk(lambda client: client.templates.create(name, job, description))
    session.printer.details(template, _DETAILS)
    session.printer.warn(template)


@command(
    templates, "edit", "timeball templates edit welcome --queue slow", "timeball templates edit welcome --rename hello"
)
def edit_template(
    session: CliSession,
    template: TemplateRef,
    options: JobFlags,
    rename: Annotated[str | None, typer.Option("--rename", help="A new name.")] = None,
) -> None:
    """Change a template. Jobs that were created from it stay as they are."""
    fields = options.fields()
    description = fields.pop("description", None)

    async def change(client: AsyncClient) -> Any:
        current = await client.templates.get(template)
        changes: dict[str, Any] = {} if rename is None else {"name": rename}
        changes |= {} if description is None else {"description": description}
        changes |= {"job": current.job | fields} if fields else {}
        return await client.templates.update(current.id, current.version, **changes)

    changed = session.talk(change)
    session.printer.details(changed, _DETAILS)
    session.printer.warn(changed)


@command(templates, "delete", "timeball templates delete welcome --yes")
def delete_template(session: CliSession, template: TemplateRef, yes: Yes = False) -> None:
    """Delete a template; jobs that were created from it stay."""
    session.printer.confirm(f"Delete the template {template}?", yes=yes)
    session.talk(lambda client: client.templates.delete(template))
    session.printer.say(f"{template} is deleted")


@command(
    templates, "use", "timeball templates use welcome to=a@b.co", "timeball templates use welcome to=a@b.co --in 10m"
)
def use_template(
    session: CliSession,
    template: TemplateRef,
    options: JobFlags,
    variables: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="The values of the template's variables.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the job.")] = None,
) -> None:
    """Create a job from a template; options override its values."""
    fields: Any = options.fields() | ({} if name is None else {"name": name})
    values = read_pairs(variables or (), "the variables") or None
    job = session.talk(lambda client: client.templates.use(template, values, **fields))
    session.printer.details(job, JOB_DETAILS)
    session.printer.warn(job)
