"""`timeball channels` and `timeball alert-routes`: where alerts go, and which of them go where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from timeball.cli.job_options import read_pairs
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient

channels = command_group(
    "channels",
    "Channels: where alerts go.",
    ["timeball channels", "timeball channels create team slack --secret url=SLACK_URL"],
)
alert_routes = command_group(
    "alert-routes",
    "Alert routes: which alerts go to which channels.",
    ["timeball alert-routes", "timeball alert-routes create all --to on-call --repeat-every 4h"],
)

ChannelRef = Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel's name.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Its settings: url=https://..., to=ops@example.com (again for more), headers.X-Team=ops.",
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="KEY=NAME",
        help="A setting that is a secret of the workers, TIMEBALL_SECRET_NAME there; repeat for more.",
    ),
]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.")]
RouteRef = Annotated[str, typer.Argument(metavar="ROUTE", help="The name of an alert route.")]
Severity = Annotated[
    str | None, typer.Option("--severity", help="The least severity: critical, or warning for all of them.")
]
RouteQueues = Annotated[
    list[str] | None, typer.Option("--queue", help="Only alerts about this queue; repeat for more.")
]
RouteTags = Annotated[
    list[str] | None, typer.Option("--tag", help="Only alerts about jobs with this tag; repeat for more.")
]
RouteJobs = Annotated[list[str] | None, typer.Option("--job", help="Only alerts about this job; repeat for more.")]
Quiet = Annotated[
    list[str] | None,
    typer.Option("--quiet", help='Call no one in this span: "22:00-07:00 Europe/Berlin mon,tue"; repeat for more.'),
]
Repeat = Annotated[
    str | None, typer.Option("--repeat-every", help="Tell it again so often while it is open: 4h; 0 to do so no more.")
]

_COLUMNS = [
    Column("name"),
    Column("kind"),
    Column("routes"),
    Column("latest", "latest_delivery.state", ColumnKind.STATE),
    Column("at", "latest_delivery.created_at", ColumnKind.INSTANT),
    Column("description"),
]
_DETAILS = [
    Column("name"),
    Column("kind"),
    Column("description"),
    Column("settings"),
    Column("secrets"),
    Column("bound secrets only", "bound_secrets_only"),
    Column("routes"),
    Column("latest", "latest_delivery.state", ColumnKind.STATE),
    Column("version"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("updated", "updated_at", ColumnKind.INSTANT),
]
_DELIVERIES = [
    Column("id"),
    Column("event"),
    Column("state", kind=ColumnKind.STATE),
    Column("alert", lambda delivery: delivery["sentence"] or delivery["alert"]),
    Column("attempts", kind=ColumnKind.NUMBER),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("sent", "sent_at", ColumnKind.INSTANT),
    Column("next", "next_at", ColumnKind.INSTANT),
    Column("reason", lambda delivery: delivery["note"] or delivery["error"]),
]
_ROUTES = [
    Column("name"),
    Column("channels"),
    Column("severity"),
    Column("queues"),
    Column("tags"),
    Column("jobs"),
    Column("quiet", lambda route: [_quiet_words(hours) for hours in route["quiet_hours"]]),
    Column("repeat", lambda route: _span_words(route["repeat_every_seconds"])),
    Column("description"),
]


@list_command(channels, "timeball channels list")
def list_channels(session: CliSession, limit: Limit = 50) -> None:
    """List the channels."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.channels.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no channels yet: alerts are told to no one")


@command(channels, "show", "timeball channels show on-call")
def show_channel(session: CliSession, channel: ChannelRef) -> None:
    """Show one channel."""
    session.printer.details(session.talk(lambda client: client.channels.get(channel)), _DETAILS)


@command(
    channels,
    "create",
    "timeball channels create team slack --secret url=SLACK_URL",
    "timeball channels create night email to=night@example.com",
)
def create_channel(
    session: CliSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the channel.")],
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="How it sends: webhook, slack, email, pagerduty or command.")
    ],
    settings: Settings = None,
    secret: Secrets = None,
    description: Description = None,
) -> None:
    """Create a channel. Try it with `timeball channels test NAME`, and lead alerts to it with `timeball alert-routes create`."""
    fields = _settings(settings, secret)
    session.printer.details(
        session.talk(lambda client: client.channels.create(name, cast(Any, kind), fields, description=description)),
        _DETAILS,
    )


@command(
    channels,
    "edit",
    "timeball channels edit ops to=ops@example.com to=night@example.com",
    'timeball channels edit ops --description "who is on call"',
)
def edit_channel(
    session: CliSession,
    channel: ChannelRef,
    settings: Settings = None,
    secret: Secrets = None,
    description: Description = None,
) -> None:
    """Change a channel. Settings that are not given stay as they are; an empty one (KEY=) is taken out."""

    async def change(client: AsyncClient) -> Any:
        current = await client.channels.get(channel)
        changes: dict[str, Any] = {} if description is None else {"description": description}
        if settings or secret:
            changes["settings"] = {**current.settings, **_settings(settings, secret)}
        return await client.channels.update(channel, current.version, **changes)

    session.printer.details(session.talk(change), _DETAILS)


@command(channels, "delete", "timeball channels delete ops --yes")
def delete_channel(session: CliSession, channel: ChannelRef, yes: Yes = False) -> None:
    """Delete a channel that no route leads to."""
    session.printer.confirm(f"Delete the channel {channel}?", yes=yes)
    session.talk(lambda client: client.channels.delete(channel))
    session.printer.say(f"{channel} is deleted")


@command(channels, "test", "timeball channels test on-call --no-wait")
def send_test(
    session: CliSession,
    channel: ChannelRef,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it was delivered, or not.")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="How many seconds to wait at most.")] = 60,
) -> None:
    """Send a test to a channel. A worker delivers it, so one that serves the queue timeball.alerts has to run."""

    async def send(client: AsyncClient) -> Any:
        delivery = await client.channels.test(channel)
        return await client.channels.wait_for_delivery(channel, delivery.id, timeout) if wait else delivery

    delivery = session.talk(send)
    session.printer.details(delivery, _DELIVERIES)
    if delivery.state == "failed":
        raise typer.Exit(1)


@command(channels, "deliveries", "timeball channels deliveries on-call")
def list_deliveries(session: CliSession, channel: ChannelRef, limit: Limit = 50) -> None:
    """List what was sent to a channel or waits to be, the latest first."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.channels.iterate_deliveries(channel, limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(read), _DELIVERIES, empty=f"nothing was sent to {channel} yet")


def _settings(pairs: Sequence[str] | None, secrets: Sequence[str] | None) -> dict[str, Any]:
    """`key=value` and `key=SECRET` words as settings: a key again makes a list, and a dot leads into an object."""
    words: list[tuple[str, Any]] = []
    for pair in pairs or ():
        words += read_pairs([pair], "the settings").items()
    for pair in secrets or ():
        words += ((key, {"$secret": str(name)}) for key, name in read_pairs([pair], "--secret").items())
    settings: dict[str, Any] = {}
    for path, value in words:
        name, dot, inner = path.partition(".")
        if dot:
            settings.setdefault(name, {})[inner] = value
        elif name in settings:
            settings[name] = [*_listed(settings[name]), value]
        else:
            settings[name] = [value] if name in _LISTS and value != "" else value
    return settings


_LISTS = ("to", "cc", "args")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Alert routes.


@list_command(alert_routes, "timeball alert-routes list")
def list_alert_routes(session: CliSession) -> None:
    """List the routes."""
    routes = session.talk(lambda client: client.alert_routes.list())
    session.printer.rows(routes, _ROUTES, empty="no routes yet: alerts are told to no one")


@command(alert_routes, "show", "timeball alert-routes show everything")
def show_alert_route(session: CliSession, route: RouteRef) -> None:
    """Show one route."""
    session.printer.details(session.talk(lambda client: client.alert_routes.get(route)), _ROUTES)


@command(
    alert_routes,
    "create",
    "timeball alert-routes create all --to on-call --repeat-every 4h",
    'timeball alert-routes create invoices --to ops --queue billing --quiet "22:00-07:00 Europe/Berlin"',
)
def create_alert_route(
    session: CliSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the route.")],
    to: Annotated[list[str], typer.Option("--to", help="The channel that is told; repeat for more.")],
    severity: Severity = None,
    queue: RouteQueues = None,
    tag: RouteTags = None,
    job: RouteJobs = None,
    quiet: Quiet = None,
    repeat_every: Repeat = None,
    description: Description = None,
) -> None:
    """Create a route. Without --queue, --tag and --job all alerts take it."""
    fields = _route_fields(severity, queue, tag, job, quiet, repeat_every, description)
    session.printer.details(
        session.talk(lambda client: client.alert_routes.create(name, to, **fields)),
        _ROUTES,
    )


@command(
    alert_routes,
    "edit",
    "timeball alert-routes edit everything --severity critical",
    "timeball alert-routes edit everything --repeat-every 0",
)
def edit_alert_route(
    session: CliSession,
    route: RouteRef,
    to: Annotated[list[str] | None, typer.Option("--to", help="The channels that are told from now on.")] = None,
    severity: Severity = None,
    queue: RouteQueues = None,
    tag: RouteTags = None,
    job: RouteJobs = None,
    quiet: Quiet = None,
    repeat_every: Repeat = None,
    description: Description = None,
) -> None:
    """Change a route. What is given replaces what was there; an empty word (--queue "") takes it out."""
    fields = _route_fields(severity, queue, tag, job, quiet, repeat_every, description)
    fields |= {"channels": to} if to else {}
    session.printer.details(session.talk(lambda client: client.alert_routes.update(route, **fields)), _ROUTES)


@command(alert_routes, "delete", "timeball alert-routes delete billing --yes")
def delete_alert_route(session: CliSession, route: RouteRef, yes: Yes = False) -> None:
    """Delete a route: its alerts are told to no one, unless they take another one."""
    session.printer.confirm(f"Delete the alert route {route}?", yes=yes)
    session.talk(lambda client: client.alert_routes.delete(route))
    session.printer.say(f"{route} is deleted")


def _route_fields(
    severity: str | None,
    queues: Sequence[str] | None,
    tags: Sequence[str] | None,
    jobs: Sequence[str] | None,
    quiet: Sequence[str] | None,
    repeat_every: str | None,
    description: str | None,
) -> dict[str, Any]:
    from timeball.domain.values.wording import parse_duration

    fields: dict[str, Any] = {} if severity is None else {"severity": severity}
    for name, words in (("queues", queues), ("tags", tags), ("jobs", jobs)):
        fields |= {} if words is None else {name: [word for word in words if word]}
    if quiet is not None:
        fields["quiet_hours"] = [_read_quiet(text) for text in quiet if text]
    if repeat_every is not None:
        seconds = int(parse_duration(repeat_every, "--repeat-every").total_seconds()) if repeat_every != "0" else 0
        fields["repeat_every_seconds"] = seconds or None
    return fields | ({} if description is None else {"description": description})


def _read_quiet(text: str) -> dict[str, Any]:
    """`22:00-07:00 Europe/Berlin mon,tue`: a span, and in any order its zone and its days."""
    from timeball.domain.values.field_errors import unexpected_value

    hours: dict[str, Any] = {}
    for word in text.split():
        start, dash, end = word.partition("-")
        if dash and ":" in start and ":" in end:
            hours |= {"from": start, "until": end}
        elif all(day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun") for day in word.split(",")):
            hours["days"] = word.split(",")
        else:
            hours["timezone"] = word
    if "from" not in hours:
        raise unexpected_value("--quiet", text, 'a span such as "22:00-07:00 Europe/Berlin"', field="quiet_hours")
    return hours


def _quiet_words(hours: dict[str, Any]) -> str:
    days = "" if len(hours["days"]) == len("MTWTFSS") else f" {','.join(hours['days'])}"
    return f"{hours['from']}-{hours['until']} {hours['timezone']}{days}"


def _span_words(seconds: int | None) -> str | None:
    from timeball.domain.values.wording import format_duration, parse_duration

    return None if seconds is None else format_duration(parse_duration(seconds))
