"""`timeball watch`: look after an installation from outside, and tell what it cannot tell by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.errors import FAILED, OK
from timeball.cli.session import resolve_database, run_async
from timeball.cli.tree import command_without_session, ungrouped_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeball.config.settings import Settings
    from timeball.domain.alerts import AlertFact
    from timeball.engine.watcher import WatchReport

commands = ungrouped_commands()

Once = Annotated[
    bool, typer.Option("--once", help="Look once, ping, and exit: with 1 if something is wrong. No channel is told.")
]
Every = Annotated[float | None, typer.Option("--every", min=1, max=3_600, help="Seconds between looks; 30 by default.")]
Ping = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Call this address after each look; with /fail behind it if something is wrong."),
]
WebhookUrl = Annotated[
    str | None, typer.Option("--webhook", metavar="URL", help="Send alerts to this address, too, as JSON.")
]
Channels = Annotated[
    list[str] | None,
    typer.Option("--channel", help="Use only this channel; repeat for more. Default: those to which routes lead."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each look.")]


@command_without_session(
    commands,
    "watch",
    "timeball watch",
    "timeball watch --ping https://hc-ping.com/your-check --channel on-call",
    "timeball watch --once",
)
def watch(
    once: Once = False,
    every: Every = None,
    ping: Ping = None,
    webhook: WebhookUrl = None,
    channel: Channels = None,
    as_json: AsJson = False,
) -> None:
    """Watch an installation from outside, and tell when it is dead. It reads the database alone, so a role that may not write is enough."""
    from timeball.config.settings import load_settings

    flags = {"every_seconds": every, "ping_url": ping, "webhook_url": webhook, "channels": channel}
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings()
    if given:
        known = settings.watch.model_dump(exclude_unset=True)
        settings = settings.model_copy(update={"watch": load_settings(watch=known | given).watch})
    settings = _with_database(settings)
    if once:
        report = run_async(_look_once(settings))
        _show(report, as_json=as_json)
        raise typer.Exit(FAILED if report.facts else OK)
    from timeball.cli.processes import run_watcher

    run_watcher(settings, _print_json if as_json else _show_nothing)


async def _look_once(settings: Settings) -> WatchReport:
    from timeball.runtime import open_watcher
    from timeball.telemetry.emitter import make_emit

    async with open_watcher(settings, make_emit(settings)) as watcher:
        return await watcher.look_once()


def _show_nothing(_report: WatchReport) -> None:
    """What has changed is in the log."""


def _show(report: WatchReport, *, as_json: bool) -> None:
    if as_json:
        _print_json(report)
    else:
        _print_facts(report.facts)


def _with_database(settings: Settings) -> Settings:
    """The settings with the database that `timeball up` has recorded, if they name none. One that does not exist is a fact to tell."""
    return settings if "data_dir" in settings.model_fields_set else resolve_database(settings)


def _print_facts(facts: Sequence[AlertFact]) -> None:
    from timeball.cli.output import single_line

    for fact in facts:
        cells = (fact.severity.value, fact.kind, fact.sentence, fact.advice or "")
        typer.echo("\t".join(map(single_line, cells)))
    if not facts:
        typer.echo("all is well")


def _print_json(report: WatchReport) -> None:
    from timeball.cli.output import Printer

    Printer().json_line(_document(report))


def _document(report: WatchReport) -> dict[str, Any]:
    from timeball.domain.alert_messages import alert_facts
    from timeball.domain.scheduling.civil_time import format_instant

    fields = ("kind", "severity", "sentence", "advice", "command")
    return {
        "at": format_instant(report.at),
        "status": "fail" if report.facts else "ok",
        "facts": [{name: getattr(fact, name) for name in fields} for fact in report.facts],
        "alerts": [alert_facts(alert) for alert in report.alerts],
    }
