"""`timeball webhooks`: addresses that events are sent to, and what became of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Reason, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient

webhooks = command_group(
    "webhooks",
    "Webhooks: addresses that events are sent to.",
    ["timeball webhooks", "timeball webhooks create https://example.com/hook --event execution.dead"],
)

WebhookRef = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The id of a webhook, whk_...")]
DeliveryRef = Annotated[str, typer.Argument(metavar="DELIVERY", help="The id of a delivery, dlv_...")]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event", help="A type of events, such as execution.dead or execution.*; repeat for more. Default: all."
    ),
]
Queue = Annotated[str | None, typer.Option("--queue", help="Only events of this queue.")]
Job = Annotated[str | None, typer.Option("--job", help="Only events of this job.")]
Handler = Annotated[str | None, typer.Option("--handler", help="Only events of this handler.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only events of jobs with this tag.")]
Format = Annotated[str | None, typer.Option("--format", help="The shape of the bodies: standard or cloudevents.")]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.")]

_FORMATS = ("standard", "cloudevents")
_STATES = ("pending", "delivered", "failed")
_COLUMNS = [
    Column("id"),
    Column("url"),
    Column("events", lambda webhook: ", ".join(webhook["events"]) or "all"),
    Column("state", kind=ColumnKind.STATE),
    Column("waiting"),
    Column("last success", "succeeded_at", ColumnKind.INSTANT),
]
_DETAILS = [
    Column("id"),
    Column("url"),
    Column("description"),
    Column("events", lambda webhook: ", ".join(webhook["events"]) or "all"),
    Column("queue"),
    Column("job", "job_id"),
    Column("handler"),
    Column("tag"),
    Column("format"),
    Column("state", kind=ColumnKind.STATE),
    Column("because", "disabled_reason"),
    Column("waiting"),
    Column("failing since", "failing_since", ColumnKind.INSTANT),
    Column("last success", "succeeded_at", ColumnKind.INSTANT),
    Column("both secrets until", "rotation_until", ColumnKind.INSTANT),
    Column("version"),
    Column("by", "created_by"),
    Column("created", "created_at", ColumnKind.INSTANT),
]
_DELIVERY_COLUMNS = [
    Column("id"),
    Column("type"),
    Column("subject"),
    Column("state", kind=ColumnKind.STATE),
    Column("attempts"),
    Column("answer", lambda delivery: delivery["status"] or delivery["error"]),
    Column("next", "next_at", ColumnKind.INSTANT),
    Column("occurred", "occurred_at", ColumnKind.INSTANT),
]
_DELIVERY_DETAILS = [
    Column("id"),
    Column("webhook", "webhook_id"),
    Column("message", "message_id"),
    Column("type"),
    Column("subject"),
    Column("state", kind=ColumnKind.STATE),
    Column("attempts"),
    Column("answer", "status"),
    Column("error"),
    Column("next", "next_at", ColumnKind.INSTANT),
    Column("occurred", "occurred_at", ColumnKind.INSTANT),
    Column("finished", "finished_at", ColumnKind.INSTANT),
    Column("body"),
    Column("tries"),
]


@list_command(webhooks, "timeball webhooks list")
def list_webhooks(session: CliSession) -> None:
    """List the webhooks."""
    session.printer.rows(session.talk(lambda client: client.webhooks.list()), _COLUMNS, empty="no webhooks yet")


@command(webhooks, "show", "timeball webhooks show WEBHOOK")
def show_webhook(session: CliSession, webhook: WebhookRef) -> None:
    """Show one webhook."""
    session.printer.details(session.talk(lambda client: client.webhooks.get(webhook)), _DETAILS)


@command(
    webhooks,
    "create",
    "timeball webhooks create https://example.com/hook --event execution.dead --queue billing",
    "timeball webhooks create https://example.com/events --format cloudevents",
)
def create_webhook(
    session: CliSession,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Where to; https, unless an administrator allows http.")
    ],
    events: Events = None,
    queue: Queue = None,
    job: Job = None,
    handler: Handler = None,
    tag: Tag = None,
    format: Format = None,
    description: Description = None,
) -> None:
    """Send events to an address from now on, and print the secret that signs them."""
    shape = _choice("--format", format, _FORMATS)
    created = session.talk(
        lambda client: client.webhooks.create(
            address,
            events or [],
            queue=queue,
            job=job,
            handler=handler,
            tag=tag,
            format=cast(Literal["standard", "cloudevents"] | None, shape),
            description=description,
        )
    )
    session.printer.details(created, [*_DETAILS, Column("secret")])
    session.printer.say("keep the secret now: it cannot be shown again")


@command(
    webhooks,
    "edit",
    "timeball webhooks edit WEBHOOK --event execution.*",
    'timeball webhooks edit WEBHOOK --disable --reason "moving house"',
    "timeball webhooks edit WEBHOOK --enable",
)
def edit_webhook(
    session: CliSession,
    webhook: WebhookRef,
    address: Annotated[str | None, typer.Option("--address", help="Another address.")] = None,
    events: Events = None,
    queue: Queue = None,
    job: Job = None,
    handler: Handler = None,
    tag: Tag = None,
    format: Format = None,
    description: Description = None,
    is_enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Switch it on or off. What waits is sent once it is on.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Change a webhook; an empty text takes a filter away."""
    given = {"url": address, "queue": queue, "job": job, "handler": handler, "tag": tag, "description": description}
    changes: dict[str, Any] = {name: value or None for name, value in given.items() if value is not None}
    if events is not None:
        changes["events"] = [event for event in events if event]
    if (shape := _choice("--format", format, _FORMATS)) is not None:
        changes["format"] = shape
    if is_enabled is not None:
        changes["state"] = "active" if is_enabled else "disabled"
    if reason is not None:
        changes["reason"] = reason
    session.printer.details(session.talk(lambda client: client.webhooks.update(webhook, **changes)), _DETAILS)


@command(webhooks, "rotate", "timeball webhooks rotate WEBHOOK --keep 24h")
def rotate_secret(
    session: CliSession,
    webhook: WebhookRef,
    keep: Annotated[
        str | None, typer.Option("--keep", help="How long the present secret signs, too. Default: 24h.")
    ] = None,
) -> None:
    """Sign by a new secret, and print it; for a while the present one signs, too."""
    rotated = session.talk(lambda client: client.webhooks.rotate(webhook, keep))
    session.printer.details(
        rotated, [Column("id"), Column("both until", "rotation_until", ColumnKind.INSTANT), Column("secret")]
    )
    session.printer.say("keep the secret now: it cannot be shown again")


@command(webhooks, "test", "timeball webhooks test WEBHOOK")
def try_webhook(session: CliSession, webhook: WebhookRef) -> None:
    """Send a test event to a webhook, also to one that is disabled."""
    delivery = session.talk(lambda client: client.webhooks.test(webhook))
    session.printer.details(delivery, _DELIVERY_DETAILS)
    session.printer.say(f"timeball webhooks delivery {delivery.id} shows what becomes of it")


@command(webhooks, "deliveries", "timeball webhooks deliveries WEBHOOK --state failed")
def list_deliveries(
    session: CliSession,
    webhook: WebhookRef,
    state: Annotated[
        str | None, typer.Option("--state", help="Only those that are pending, delivered or failed.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List what was sent to a webhook, the latest first."""
    chosen = cast(Literal["pending", "delivered", "failed"] | None, _choice("--state", state, _STATES))

    async def read(client: AsyncClient) -> list[Any]:
        pages = client.webhooks.iterate_deliveries(webhook, state=chosen, limit=min(limit, 200))
        return await take(pages, limit)

    session.printer.rows(session.talk(read), _DELIVERY_COLUMNS, empty="nothing was sent yet")


@command(webhooks, "delivery", "timeball webhooks delivery DELIVERY")
def show_delivery(session: CliSession, delivery: DeliveryRef) -> None:
    """Show one message with its attempts."""
    session.printer.details(session.talk(lambda client: client.webhooks.delivery(delivery)), _DELIVERY_DETAILS)


@command(webhooks, "redeliver", "timeball webhooks redeliver DELIVERY")
def redeliver(session: CliSession, delivery: DeliveryRef) -> None:
    """Send a message again, with the same id and body."""
    session.printer.details(session.talk(lambda client: client.webhooks.redeliver(delivery)), _DELIVERY_DETAILS)


@command(webhooks, "delete", "timeball webhooks delete WEBHOOK --yes")
def delete_webhook(session: CliSession, webhook: WebhookRef, yes: Yes = False) -> None:
    """Delete a webhook with its deliveries; what waits is not sent."""
    session.printer.confirm(f"Delete the webhook {webhook}?", yes=yes)
    session.talk(lambda client: client.webhooks.delete(webhook))
    session.printer.say(f"{webhook} is deleted")


def _choice(option: str, value: str | None, choices: tuple[str, ...]) -> str | None:
    if value is not None and value not in choices:
        from timeball.domain.values.field_errors import list_choices, unexpected_value

        raise unexpected_value(option, value, list_choices(choices), field=option.removeprefix("--"))
    return value
