"""`timeball alerts`: facts that a person should act upon, until they are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import read_moment_ahead
from timeball.cli.output import Column, ColumnKind, Document
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Reason, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient

alerts = command_group(
    "alerts",
    "Alerts: facts that a person should act upon, until they are gone.",
    ["timeball alerts", "timeball alerts show ALERT", "timeball alerts acknowledge ALERT --until 2h"],
)

AlertRef = Annotated[str, typer.Argument(metavar="ALERT", help="The id of an alert, alr_...")]

_STATES = ("pending", "open", "acknowledged", "resolved")
_SEVERITIES = ("critical", "warning")


def _known(alert: Document, name: str) -> Any:
    return None if alert["acknowledgement"] is None else alert["acknowledgement"][name]


_COLUMNS = [
    Column("id"),
    Column("severity"),
    Column("state", kind=ColumnKind.STATE),
    Column("opened", "opened_at", ColumnKind.INSTANT),
    Column("sentence"),
]
_DETAILS = [
    Column("id"),
    Column("kind"),
    Column("severity"),
    Column("state", kind=ColumnKind.STATE),
    Column("sentence"),
    Column("why"),
    Column("command"),
    Column("about", lambda alert: ", ".join(member["name"] for member in alert["members"])),
    Column("count"),
    Column("first seen", "first_seen_at", ColumnKind.INSTANT),
    Column("opened", "opened_at", ColumnKind.INSTANT),
    Column("last seen", "last_seen_at", ColumnKind.INSTANT),
    Column("resolved", "resolved_at", ColumnKind.INSTANT),
    Column("acknowledged by", lambda alert: _known(alert, "by")),
    Column("acknowledged at", lambda alert: _known(alert, "at"), ColumnKind.INSTANT),
    Column("until", lambda alert: _known(alert, "until"), ColumnKind.INSTANT),
    Column("reason", lambda alert: _known(alert, "reason")),
]


@list_command(alerts, "timeball alerts", "timeball alerts list --severity critical --job nightly")
def list_alerts(
    session: CliSession,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="pending, open, acknowledged or resolved; repeatable. Default: open, acknowledged."
        ),
    ] = None,
    severity: Annotated[str | None, typer.Option("--severity", help="critical or warning.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind, such as no_success.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="About this job.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="About this queue, or a job in it.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="About a job with this tag.")] = None,
    limit: Limit = 50,
) -> None:
    """List what a person should act upon, the latest first."""
    for word in state or ():
        _check_word(word, "--state", _STATES)
    if severity is not None:
        _check_word(severity, "--severity", _SEVERITIES)

    async def read(client: AsyncClient) -> list[Any]:
        items: Any = client.alerts.iterate(
            state=state,
            severity=severity,  # type: ignore[arg-type]
            kind=kind,
            job=job,
            queue=queue,
            tag=tag,
            limit=min(limit, 200),
        )
        return await take(items, limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no alert is open")


@command(alerts, "show", "timeball alerts show ALERT")
def show_alert(session: CliSession, alert: AlertRef) -> None:
    """Show one alert, with its life."""
    session.printer.details(session.talk(lambda client: client.alerts.get(alert)), _DETAILS)


@command(
    alerts,
    "acknowledge",
    "timeball alerts acknowledge ALERT",
    'timeball alerts acknowledge ALERT --until 2h --reason "the disk is being replaced"',
)
def acknowledge_alert(
    session: CliSession,
    alert: AlertRef,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Until when that is enough: mon-08:00, 18:30, 2027-01-04T06:00 or in 2h."),
    ] = None,
    reason: Reason = None,
) -> None:
    """Say that a person knows of an open alert, until an instant or until it is resolved."""
    end = None if until is None else read_moment_ahead(until, "--until")
    known = session.talk(lambda client: client.alerts.acknowledge(alert, until=end, reason=reason))
    session.printer.details(known, _DETAILS)


@command(alerts, "unacknowledge", "timeball alerts unacknowledge ALERT")
def unacknowledge_alert(session: CliSession, alert: AlertRef, reason: Reason = None) -> None:
    """Take an acknowledgement back: the alert waits for a person again."""
    session.printer.details(session.talk(lambda client: client.alerts.unacknowledge(alert, reason)), _DETAILS)


def _check_word(word: str, option: str, known: tuple[str, ...]) -> None:
    if word not in known:
        from timeball.domain.values.field_errors import list_choices, unexpected_value

        raise unexpected_value(option, word, list_choices(known), field=option.removeprefix("--"))
