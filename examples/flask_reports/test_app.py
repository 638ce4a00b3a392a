"""`pytest` in this folder."""

from __future__ import annotations

from typing import Any

import app as reports
import pytest

ACME = {"X-Tenant": "acme"}


@pytest.fixture
def site() -> Any:
    reports.outbox.clear()
    return reports.app.test_client()


def test_a_report_is_made_for_the_tenant_of_the_request(site: Any) -> None:
    with reports.tb.inline():
        answer = site.post("/users/ada/report", headers=ACME)

    assert answer.status_code == 202
    assert reports.outbox == ["ada of acme sold 40"]


def test_a_stranger_enqueues_nothing(site: Any) -> None:
    with reports.tb.inline():
        assert site.post("/users/ada/report", headers={"X-Tenant": "initech"}).status_code == 404

    assert reports.outbox == []


@pytest.mark.timeball(start="2026-03-27T12:00+01:00")
def test_a_user_gets_the_report_every_morning_of_their_zone(site: Any, timeball: Any) -> None:
    timeball.use(reports.tb)
    wish = {"cron": "0 7 * * *", "timezone": "Europe/Berlin"}

    assert site.put("/users/ada/report/schedule", headers=ACME, json=wish).json["action"] == "create"
    timeball.clock.advance("3d")

    assert [str(morning) for morning in timeball.fired("report:acme:ada")] == [
        "2026-03-28 07:00:00 CET",
        "2026-03-29 07:00:00 CEST",
        "2026-03-30 07:00:00 CEST",
    ]
    assert reports.outbox == ["ada of acme sold 40"] * 3


@pytest.mark.timeball(start="2026-03-27T12:00+01:00")
def test_a_user_who_leaves_gets_no_more_reports(site: Any, timeball: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reports.SALES, "acme", {"ada": 40, "bob": 2})
    timeball.use(reports.tb)
    site.put("/users/bob/report/schedule", headers=ACME, json={"cron": "0 7 * * *", "timezone": "UTC"})

    assert site.delete("/users/bob", headers=ACME).status_code == 204
    timeball.clock.advance("3d")

    assert reports.outbox == []
