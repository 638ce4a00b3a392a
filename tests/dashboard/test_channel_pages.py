"""Channels on the pages: the form of each kind, the test button, deliveries with their states, and routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from timeball.domain.alerts import AlertEvaluation, AlertFact, Severity
from timeball.runtime import ServerRuntime
from timeball.testing import VirtualClock

CANARY = "S3cret-canary-4711"


@pytest.mark.parametrize(
    ("kind", "fields", "settings"),
    [
        (
            "webhook",
            {
                "url": "https://example.com/alerts",
                "headers": "X-Team: ops\nAuthorization: $TOKEN",
                "signing_secret": "OLD, $NEW",
            },
            {
                "url": "https://example.com/alerts",
                "headers": {"X-Team": "ops", "Authorization": {"$secret": "TOKEN"}},
                "signing_secret": [{"$secret": "OLD"}, {"$secret": "NEW"}],
            },
        ),
        ("webhook", {"url": "$HOOK"}, {"url": {"$secret": "HOOK"}}),
        ("slack", {"url": "SLACK_URL"}, {"url": {"$secret": "SLACK_URL"}}),
        ("email", {"to": "a@example.com\nb@example.com", "cc": ""}, {"to": ["a@example.com", "b@example.com"]}),
        (
            "pagerduty",
            {"routing_key": "$PAGER", "region": "eu", "url": ""},
            {"routing_key": {"$secret": "PAGER"}, "region": "eu"},
        ),
        (
            "command",
            {"command": "page.sh", "args": "--now\n$TOKEN", "env": "TOKEN: $TOKEN"},
            {"command": "page.sh", "args": ["--now", {"$secret": "TOKEN"}], "env": {"TOKEN": {"$secret": "TOKEN"}}},
        ),
    ],
)
async def test_each_kind_has_a_form_that_says_its_settings_again_when_it_is_edited(
    browser: Browser, parts: ServerRuntime, kind: str, fields: dict[str, str], settings: dict[str, Any]
) -> None:
    form = {f"{kind}.{name}": value for name, value in fields.items()}
    made = await browser.submit("/channels", name="ops", kind=kind, description="who is on call", **form)
    view = await parts.queries.channels.find("ops")
    edited = await browser.get("/channels/ops/edit")

    assert made.url.path == "/channels/ops"
    assert (view.channel.kind.value, view.channel.settings) == (kind, settings)
    # The form as it is would change nothing.
    again = {name: value.replace("OLD, $NEW", "$OLD $NEW") for name, value in form.items()}
    saved = await browser.submit("/channels/ops/edit", description="who is on call", version=1, **again)
    assert saved.url.path == "/channels/ops"
    assert (await parts.queries.channels.find("ops")).channel.settings == settings
    for value in fields.values():
        for line in value.replace(",", "").split("\n"):
            assert line.removeprefix("$").split(" ")[0] in edited.text


async def test_a_plain_secret_is_refused_beside_its_field_and_not_stored(
    browser: Browser, parts: ServerRuntime
) -> None:
    url = f"https://hooks.slack.com/services/{CANARY}"
    refused = await browser.submit("/channels", name="ops", kind="slack", **{"slack.url": url})

    assert refused.status_code == 422
    assert 'id="e-slack.url"' in refused.text
    assert "url is a plain value, expected the name of a secret" in refused.text
    assert (await parts.queries.channels.page(_page())).items == []


def _page() -> Any:
    from timeball.domain.search import PageRequest

    return PageRequest(limit=10)


async def test_a_stale_form_does_not_overwrite_what_came_between(browser: Browser, parts: ServerRuntime) -> None:
    await parts.commands.channels.create("ops", "email", {"to": ["a@example.com"]})
    await parts.commands.channels.update("ops", {"settings": {"to": ["b@example.com"]}})

    stale = await browser.submit("/channels/ops/edit", version=1, **{"email.to": "c@example.com"})

    assert stale.status_code == 422
    assert (await parts.queries.channels.find("ops")).channel.settings == {"to": ["b@example.com"]}


async def test_the_test_button_and_alerts_fill_the_list_of_deliveries(
    browser: Browser, parts: ServerRuntime, clock: VirtualClock
) -> None:
    await parts.commands.channels.create("ops", "email", {"to": ["a@example.com"]})
    alone = await browser.get("/channels/ops")
    await parts.commands.alert_routes.create({"name": "all", "channels": ["ops"]})
    tested = await browser.submit("/channels/ops/test")
    fact = AlertFact(kind="late", key="late:1", severity=Severity.WARNING, sentence="<b>nightly</b> is late")
    await parts.commands.alerts.reconcile(AlertEvaluation(clock.now(), [fact]))
    page = (await browser.get("/channels/ops")).text

    assert "No route leads here" in alone.text
    assert "Nothing was sent yet" in alone.text
    assert "A test is on its way" in tested.text
    assert "No route leads here" not in page
    assert page.index("&lt;b&gt;nightly&lt;/b&gt; is late") < page.index(">a test<")
    assert page.count("waiting") >= 2
    listed = (await browser.get("/channels")).text
    assert "opened" in listed


async def test_a_route_is_created_changed_and_deleted(browser: Browser, parts: ServerRuntime) -> None:
    await parts.commands.channels.create("ops", "email", {"to": ["a@example.com"]})
    form = (await browser.get("/alert-routes/new?channel=ops")).text
    made = await browser.submit(
        "/alert-routes",
        name="all",
        channels="ops",
        severity="critical",
        queues="mail\nslow",
        quiet="22:00-07:00 Europe/Berlin mon,tue",
        repeat="4h",
    )
    (route,) = await parts.queries.channels.routes()
    edit = (await browser.get("/alert-routes/all/edit")).text
    await browser.submit("/alert-routes/all/edit", channels="ops", severity="warning", version=1)
    (changed,) = await parts.queries.channels.routes()
    await browser.submit("/alert-routes/all/delete")

    assert ">ops</textarea>" in form
    assert made.url.path == "/channels"
    assert (route.severity.value, route.queues, route.channels) == ("critical", ("mail", "slow"), ("ops",))
    assert route.as_fields()["quiet_hours"] == [
        {"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin", "days": ["mon", "tue"]}
    ]
    assert route.as_fields()["repeat_every_seconds"] == 14_400
    assert "22:00-07:00 Europe/Berlin mon,tue" in edit
    assert 'value="4h"' in edit
    assert (changed.severity.value, changed.queues, changed.quiet_hours, changed.repeat_every) == (
        "warning",
        (),
        (),
        None,
    )
    assert await parts.queries.channels.routes() == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"channels": "nowhere"}, "channels names nowhere"),
        ({"channels": "ops", "quiet": "night"}, "expected a time of the day"),
        ({"channels": "ops", "repeat": "often"}, "repeat"),
    ],
)
async def test_a_route_that_does_not_fit_is_said_beside_its_field(
    browser: Browser, parts: ServerRuntime, fields: dict[str, str], words: str
) -> None:
    await parts.commands.channels.create("ops", "email", {"to": ["a@example.com"]})

    refused = await browser.submit("/alert-routes", name="all", **fields)

    assert refused.status_code == 422
    assert words in refused.text
    assert await parts.queries.channels.routes() == []


async def test_operators_test_channels_and_only_editors_change_them(
    parts: ServerRuntime, log_in: Callable[[str], Awaitable[Browser]]
) -> None:
    await parts.commands.channels.create("ops", "email", {"to": ["a@example.com"]})
    operator, viewer = await log_in("operator"), await log_in("viewer")

    page = (await operator.get("/channels/ops")).text

    assert "/channels/ops/test" in page
    assert "/channels/ops/edit" not in page
    assert "/channels/ops/delete" not in page
    assert (await operator.submit("/channels/ops/delete")).status_code == 403
    assert "/channels/ops/test" not in (await viewer.get("/channels/ops")).text
