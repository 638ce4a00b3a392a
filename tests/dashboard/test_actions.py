"""What people do in pages: make, change, pause, trigger, retry, cancel, discard; one or many; and undo it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.test_pages import ids
from tests.support.factories import due_rows, enqueue, make_job, make_node
from timeball.store.store import Store

__all__ = ["ids"]
Ids = dict[str, str]

NEW = {
    "name": "nightly",
    "handler": "test.echo",
    "payload": '{"a": 1}',
    "kind": "cron",
    "schedule": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "tags": "one, two",
    "timeout": "5m",
    "max_retries": "2",
}


async def api(browser: Browser, path: str) -> dict[str, Any]:
    answer = await browser.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def toast(page: httpx.Response) -> str:
    found = re.search(r'class="toast [^"]*">.*?<span>(.*?)</span>', page.text, re.DOTALL)
    return found[1] if found else ""


async def undo(browser: Browser, page: httpx.Response) -> httpx.Response:
    """Press Undo in the toast."""
    form = re.search(r'id="toasts".*?action="([^"]+)">(.*?)</form>', page.text, re.DOTALL)
    assert form, "there is no Undo"
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form[2]))
    return await browser.post(form[1], data=fields)


async def test_a_job_is_made_with_the_form(browser: Browser) -> None:
    page = await browser.submit("/jobs", seen_on="/jobs/new", **NEW)

    assert toast(page) == "nightly is created."
    job = await api(browser, "/jobs/nightly")
    assert (job["schedule"], job["timezone"], job["timeout_ms"]) == ("30 2 * * *", "Europe/Berlin", 300_000)
    assert (job["payload"], job["tags"], job["max_retries"]) == ({"a": 1}, ["one", "two"], 2)


async def test_what_does_not_fit_is_said_beside_its_field_and_nothing_typed_is_lost(browser: Browser) -> None:
    for wrong, field in (
        ({"schedule": "99 * * * *"}, "schedule"),
        ({"timezone": "Europe/Berlim"}, "timezone"),
        ({"payload": "{"}, "payload"),
        ({"timeout": "soon"}, "timeout"),
        ({"priority": "many"}, "priority"),
    ):
        page = await browser.submit("/jobs", seen_on="/jobs/new", **NEW | wrong)

        assert page.status_code == 422, wrong
        assert f'id="e-{field}"' in page.text, wrong
        assert 'value="nightly"' in page.text


async def test_a_job_is_changed_with_the_form_and_hidden_values_stay(browser: Browser) -> None:
    await browser.post(
        "/api/v1/jobs", json={"name": "hook", "handler": "test.echo", "payload": {"password": "p"}, "priority": 50}
    )
    form = await browser.get("/jobs/hook/edit")
    fields = {"name": "hook", "handler": "test.echo", "kind": "manual", "priority": "90"}
    payload = re.search(r'name="payload"[^>]*>(.*?)</textarea>', form.text, re.DOTALL)
    assert payload

    page = await browser.submit(
        "/jobs/hook/edit", seen_on="/jobs/hook/edit", **fields, payload=payload[1].replace("&#34;", '"'), version="1"
    )

    assert "Saved" in toast(page)
    job = await api(browser, "/jobs/hook")
    assert (job["priority"], job["version"], job["payload"]) == (90, 2, {"password": "••••••"})


async def test_a_change_that_came_second_is_refused(browser: Browser, store: Store) -> None:
    job = await make_job(store, name="shared")
    await browser.patch("/api/v1/jobs/shared", json={"priority": 10})

    page = await browser.submit(
        f"/jobs/{job.id}/edit",
        seen_on="/jobs/shared/edit",
        handler=job.handler,
        kind="manual",
        priority="20",
        version="1",
    )

    assert page.status_code == 422
    assert "version 2" in page.text
    assert (await api(browser, "/jobs/shared"))["priority"] == 10


async def test_a_schedule_can_be_of_every_kind_and_be_changed_into_another(browser: Browser) -> None:
    await browser.submit("/jobs", **NEW)
    for fields, expected in (
        ({"kind": "every", "interval": "1h30m"}, ("every", None, 5_400)),
        ({"kind": "once", "scheduled_at": "2030-01-01T09:00"}, ("once", None, None)),
        ({"kind": "cron", "schedule": "@daily"}, ("cron", "@daily", None)),
        ({"kind": "manual"}, ("manual", "manual", None)),
    ):
        page = await browser.submit("/jobs/nightly/edit", **{**NEW, **fields, "version": ""})

        assert page.status_code == 200, (fields, page.text[:2000])
        job = await api(browser, "/jobs/nightly")
        assert (job["kind"], job["schedule"], job["interval_seconds"]) == expected


async def test_once_without_an_instant_runs_now_and_an_edit_has_to_name_one(browser: Browser) -> None:
    once = NEW | {"kind": "once", "schedule": "", "scheduled_at": ""}
    preview = await browser.submit("/parts/schedule", kind="once", scheduled_at="", timezone="UTC")

    await browser.submit("/jobs", seen_on="/jobs/new", **once)
    page = await browser.submit("/jobs/nightly/edit", **once, version="")

    assert "Runs once, as soon as it is created." in preview.text
    job = await api(browser, "/jobs/nightly")
    assert (job["kind"], job["version"]) == ("once", 1)
    assert len((await api(browser, "/jobs/nightly/executions"))["data"]) == 1
    assert page.status_code == 422
    assert "would have no time" in page.text
    assert 'id="e-scheduled_at"' in page.text


async def test_the_editor_shows_what_a_schedule_does(browser: Browser, store: Store) -> None:
    job = await make_job(store, name="etl", schedule="0 3 * * *", timezone="Europe/Berlin")

    preview = await browser.submit(
        "/parts/schedule", kind="cron", schedule="30 2 * * *", timezone="Europe/Berlin", job=str(job.id)
    )

    assert "At 02:30 every day" in preview.text
    assert "10 of 10 move 30 min earlier" in preview.text
    assert "does not exist" in preview.text
    assert "comes twice" in preview.text
    assert "Nothing else is scheduled" in preview.text
    assert "No worker serves its queue now." in preview.text
    wrong = await browser.submit("/parts/schedule", kind="cron", schedule="99 * * * *", timezone="UTC")
    assert "expected 0-59" in wrong.text


async def test_the_editor_shows_what_the_next_run_lands_on(browser: Browser, store: Store) -> None:
    await make_node(store, slots=1)
    await make_job(store, name="reindex", schedule="0 3 * * *")

    preview = await browser.submit(
        "/parts/schedule", kind="cron", schedule="0 3 * * *", timezone="UTC", queue="default"
    )

    assert ">reindex</a>" in preview.text
    assert ">2 of 1</a>, this run included: something will have to wait." in preview.text
    told = await browser.post("/api/v1/schedules/preview", json={"schedule": "0 3 * * *", "queue": "default"})
    landing = told.json()["landing"]
    assert ([one["label"] for one in landing["jobs"]], landing["need"], landing["slots"]) == (["reindex"], 2, 1)


async def test_the_editor_shows_the_payload_of_the_next_run_or_what_is_wrong_with_its_references(
    browser: Browser,
) -> None:
    form = {"kind": "cron", "schedule": "0 3 * * *", "timezone": "UTC"}

    right = await browser.submit("/parts/schedule", **form, payload='{"at": {"$text": "at {scheduled_for}."}}')
    wrong = await browser.submit("/parts/schedule", **form, payload='{"at": {"$now": "tomorrow"}}')
    plain = await browser.submit("/parts/schedule", **form, payload='{"at": "$now"}')
    unfinished = await browser.submit("/parts/schedule", **form, payload='{"at": {"$now"')

    assert re.search(r"Payload of the next run.*at \d{4}-\d\d-\d\dT03:00:00Z\.", right.text, re.DOTALL)
    assert "$now names tomorrow, expected scheduled_for" in wrong.text
    for page in (right, wrong, plain, unfinished):
        assert "At 03:00 every day" in page.text
    for page in (plain, unfinished):
        assert "Payload of the next run" not in page.text
        assert "error" not in page.text


async def test_a_job_and_an_execution_are_shown_with_the_values_of_their_references(
    browser: Browser, store: Store
) -> None:
    payload = {"at": {"$text": "at {scheduled_for}, try {attempt}"}}
    job = await make_job(store, name="etl", schedule="0 3 * * *", payload=payload)
    (row,) = await due_rows(store)

    of_job = (await browser.get(f"/jobs/{job.id}")).text
    of_execution = (await browser.get(f"/executions/{row.id}")).text

    for page, heading in ((of_job, "At the next run"), (of_execution, "As attempt 1 gets it")):
        assert heading in page
        assert re.search(r"at \d{4}-\d\d-\d\dT03:00:00Z, try 1", page)
        assert "{scheduled_for}" in page
    assert "attempt changes with each attempt" in of_execution


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example", "/\\evil.example", "/jobs\n"])
async def test_a_form_leads_back_to_no_other_site(browser: Browser, ids: Ids, back: str) -> None:
    token = token_of((await browser.get("/")).text)

    answer = await browser.post(
        f"/jobs/{ids['cron']}/pause", data={"token": token, "back": back}, follow_redirects=False
    )

    assert answer.headers["location"] == f"/jobs/{ids['cron']}"


async def test_a_pause_can_be_undone(browser: Browser, ids: Ids) -> None:
    page = await browser.submit(f"/jobs/{ids['cron']}/pause", reason="maintenance", back="/jobs")

    assert toast(page) == "cron is paused."
    assert page.url.path == "/jobs"
    job = await api(browser, "/jobs/cron")
    assert (job["status"], job["pause_reason"]) == ("paused", "maintenance")
    await undo(browser, page)
    assert (await api(browser, "/jobs/cron"))["status"] == "active"


async def test_a_toast_is_shown_once(browser: Browser, ids: Ids) -> None:
    await browser.submit(f"/jobs/{ids['cron']}/pause")

    assert toast(await browser.get("/jobs")) == ""


@pytest.mark.parametrize("part", ["/parts/nav?section=jobs", "/parts/palette?q=cron", "/?part=now", "/jobs"])
async def test_a_part_that_the_page_before_fetches_does_not_take_the_toast(
    browser: Browser, ids: Ids, part: str
) -> None:
    token = token_of((await browser.get("/")).text)
    sent_on = await browser.post(
        f"/jobs/{ids['cron']}/pause", data={"token": token, "back": "/jobs"}, follow_redirects=False
    )
    fetched = await browser.get(part, headers={"HX-Request": "true", "HX-Request-Type": "partial"})

    assert fetched.status_code == 200, fetched.text
    assert toast(await browser.get(sent_on.headers["location"])) == "cron is paused."


async def test_a_job_is_triggered_and_its_execution_shown(browser: Browser, ids: Ids) -> None:
    page = await browser.submit(f"/jobs/{ids['cron']}/trigger")

    assert page.url.path.startswith("/executions/exe_")
    execution = await api(browser, page.url.path)
    assert execution["origin"] == "trigger"
    await undo(browser, page)
    assert (await api(browser, page.url.path))["state"] == "cancelled"


async def test_a_dead_execution_is_retried_with_another_payload(browser: Browser, ids: Ids) -> None:
    page = await browser.submit(f"/executions/{ids['dead']}/retry", payload='{"text": "mended"}', reason="fixed")

    made = await api(browser, page.url.path)
    assert (made["retry_of"], made["payload"]) == (ids["dead"], {"text": "mended"})
    old = await api(browser, f"/executions/{ids['dead']}")
    assert old["state"] == "dead"
    assert old["payload"]["text"] != "mended"


async def test_a_payload_that_is_no_json_is_said_beside_it(browser: Browser, ids: Ids) -> None:
    page = await browser.submit(f"/executions/{ids['dead']}/retry", payload="{nope")

    assert page.status_code == 422
    assert "{nope" in page.text


async def test_hidden_values_cannot_be_sent_back_as_dots(browser: Browser, ids: Ids) -> None:
    page = await browser.submit(f"/executions/{ids['dead']}/retry", payload='{"password": "••••••"}')

    assert page.status_code == 422
    assert "stands for a hidden value" in page.text


async def test_an_execution_is_cancelled_with_a_reason(browser: Browser, ids: Ids) -> None:
    await browser.submit(f"/executions/{ids['waiting']}/cancel", reason="not needed")

    run = await api(browser, f"/executions/{ids['waiting']}")
    assert (run["state"], run["reason"]) == ("cancelled", "not needed")


async def test_many_are_retried_and_that_is_undone(browser: Browser, ids: Ids) -> None:
    page = await browser.submit("/executions/bulk", action="retry", ids=[ids["dead"], ids["good"]], back="/executions")

    assert toast(page) == "2 executions retried."
    made = [run for run in (await api(browser, "/executions"))["data"] if run["origin"] == "retry"]
    assert {run["retry_of"] for run in made} == {ids["dead"], ids["good"]}
    await undo(browser, page)
    assert {(await api(browser, f"/executions/{run['id']}"))["state"] for run in made} == {"cancelled"}


async def test_all_that_match_are_counted_before_anything_is_done(browser: Browser, ids: Ids) -> None:
    wish = {"action": "cancel", "matching": "yes", "q": "job:cron", "status": "queued", "back": "/executions"}
    asked = await browser.submit("/executions/bulk", **wish)

    assert "Cancel 1 execution?" in asked.text
    assert (await api(browser, f"/executions/{ids['waiting']}"))["state"] == "queued"
    wrong = await browser.submit("/executions/bulk", **wish, expected="7")
    assert "it was 7" in wrong.text
    page = await browser.submit("/executions/bulk", **wish, expected="1")
    assert toast(page) == "1 execution cancelled."
    assert (await api(browser, f"/executions/{ids['waiting']}"))["state"] == "cancelled"


async def test_many_jobs_are_paused_at_once(browser: Browser, ids: Ids) -> None:
    page = await browser.submit("/jobs/bulk", action="pause", matching="yes", q="kind:cron,every", expected="2")

    assert toast(page) == "2 jobs paused."
    assert {job["name"] for job in (await api(browser, "/jobs?status=paused"))["data"]} >= {"cron", "every"}


async def test_many_jobs_are_paused_until_an_instant_on_the_clock_of_the_page(browser: Browser, ids: Ids) -> None:
    browser.cookies.set("timeball_zone", "Europe/Berlin")
    until = "2027-01-04T06:00"

    asked = await browser.submit("/jobs/bulk", action="pause", matching="yes", q="kind:cron,every", pause_until=until)
    await browser.submit(
        "/jobs/bulk", action="pause", matching="yes", q="kind:cron,every", pause_until=until, expected="2"
    )

    assert f'name="pause_until" type="datetime-local" value="{until}"' in asked.text
    assert (await api(browser, f"/jobs/{ids['cron']}"))["paused_until"] == "2027-01-04T05:00:00Z"
    assert ">resumes</span>" in (await browser.get("/jobs")).text


async def test_the_end_of_a_pause_comes_back_when_a_resumption_is_undone(browser: Browser, ids: Ids) -> None:
    job = f"/jobs/{ids['cron']}"
    await browser.submit(f"{job}/pause", reason="maintenance", until="2027-01-04T06:00:00Z", back="/jobs")

    await undo(browser, await browser.submit(f"{job}/resume", back="/jobs"))

    paused = await api(browser, job)
    assert (paused["paused_until"], paused["pause_reason"]) == ("2027-01-04T06:00:00Z", "maintenance")


async def test_many_jobs_that_were_paused_are_resumed_by_undo(browser: Browser, ids: Ids) -> None:
    page = await browser.submit("/jobs/bulk", action="pause", ids=[ids["cron"]], back="/jobs")

    assert toast(page) == "1 job paused."
    await undo(browser, page)
    assert (await api(browser, f"/jobs/{ids['cron']}"))["status"] == "active"


async def test_all_of_the_list_means_the_jobs_with_a_name_as_the_list_does(
    browser: Browser, ids: Ids, store: Store
) -> None:
    await enqueue(store)

    shown = await browser.submit("/jobs/bulk", action="pause", matching="yes")
    everything = await browser.submit("/jobs/bulk", action="pause", matching="yes", all="yes")

    assert "Pause 4 jobs?" in shown.text
    assert "Pause 5 jobs?" in everything.text


async def test_dead_letters_are_put_together_by_handler_or_queue_and_show_when_they_died(
    browser: Browser, ids: Ids
) -> None:
    by_error, by_handler, by_queue = [
        (await browser.get(path)).text for path in ("/dead", "/dead?by=handler", "/dead?by=queue")
    ]

    assert "/dead?fingerprint=f1" in by_error
    assert "/dead?handler=tests%3Anoop" in by_handler
    assert "/dead?queue=%3Cimg" in by_queue
    for page in (by_error, by_handler, by_queue):
        assert re.search(r'<svg class="chart strip"[^>]*aria-label="1 died between ', page)
    page = await browser.submit("/dead/retry", handler="tests:noop", back="/dead")
    assert toast(page) == "1 execution retried."
    assert "All its executions have been retried or discarded" in (await browser.get("/dead?handler=tests:noop")).text


async def test_dead_letters_are_retried_one_first_and_then_discarded(browser: Browser, ids: Ids) -> None:
    one = await browser.submit("/dead/retry", one=ids["dead"])
    assert toast(one) == "Retried one of the group. If it succeeds, retry the rest."
    assert (await api(browser, "/dead-letter"))["data"] == []

    page = await browser.submit("/dead/discard", fingerprint="f1", back="/dead")
    assert toast(page) == "0 executions discarded."


async def test_a_deleted_job_is_gone_and_a_copy_is_opened(browser: Browser, ids: Ids) -> None:
    copy = await browser.submit(f"/jobs/{ids['cron']}/duplicate")
    assert copy.url.path.endswith("/edit")
    assert 'value="cron-copy"' in copy.text

    page = await browser.submit(f"/jobs/{ids['cron']}/delete", reason="old")
    assert "Deleted" in toast(page)
    assert (await browser.get(f"/jobs/{ids['cron']}")).status_code == 404
    (noted,) = [one for one in (await api(browser, "/audit"))["data"] if one["action"] == "job.delete"]
    assert noted["reason"] == "old"


async def test_a_key_is_made_shown_once_used_and_revoked(browser: Browser) -> None:
    form = await browser.get("/keys")
    made = await browser.submit("/keys", name="ci", role="viewer", lasts="90d")
    found = re.search(r"<code>(tb_\w+_[\w-]+)</code>", made.text)
    assert found
    # What these pages fetched, once the key is there, would be answered by the way to the login.
    for page in (form, made):
        assert 'id="live"' not in page.text
        assert 'hx-trigger="refresh, load"' not in page.text
    key = {"Authorization": f"Bearer {found[1]}"}
    assert (await browser.get("/api/v1/jobs", headers=key)).status_code == 200
    # From here on the door is closed.
    assert (await browser.get("/keys")).url.path == "/login"
    assert (await browser.submit("/login", seen_on="/login", key=found[1])).status_code == 200
    assert (await browser.get("/keys")).status_code == 403


async def test_a_change_is_in_the_audit_with_who_and_why(browser: Browser, ids: Ids) -> None:
    await browser.submit(f"/jobs/{ids['cron']}/pause", reason="maintenance window")

    page = await browser.get("/audit")
    assert "job.pause" in page.text
    assert "maintenance window" in page.text
    activity = await browser.get(f"/jobs/{ids['cron']}?tab=activity")
    assert "maintenance window" in activity.text


async def test_files_are_taken_home(browser: Browser, ids: Ids) -> None:
    answer = await browser.get("/executions/export?q=status:dead")

    assert answer.headers["content-disposition"] == 'attachment; filename="executions.csv"'
    assert ids["dead"] in answer.text
    assert ids["good"] not in answer.text


async def test_a_template_is_kept_used_changed_and_deleted(browser: Browser) -> None:
    job = '{"handler": "test.echo", "payload": {"day": "{{day}}"}}'
    kept = await browser.submit("/templates", name="report", job=job)
    assert toast(kept) == "The template report is created."
    here = kept.url.path

    used = await browser.submit(f"{here}/use", **{"variable.day": "monday", "name": "monday-report"})
    assert toast(used) == "The job is created from the template."
    assert (await api(browser, "/jobs/monday-report"))["payload"] == {"day": "monday"}

    wrong = await browser.submit(f"{here}/edit", name="report", job="{")
    assert wrong.status_code == 422
    await browser.submit(f"{here}/edit", name="weekly", job=job, version="1")
    assert (await api(browser, "/templates/weekly"))["version"] == 2

    await browser.submit(f"{here}/delete")
    assert (await browser.get(here)).status_code == 404


async def test_a_calendar_is_made_used_changed_and_deleted(browser: Browser) -> None:
    made = await browser.submit("/calendars", name="days off", source="list", days="sat, sun\n2026-03-04")
    assert toast(made) == "The calendar days off is created."
    here = "/calendars/days%20off"
    form = {"kind": "cron", "schedule": "0 9 * * *", "skip_on": "days off", "shift": "next", "timezone": "UTC"}

    preview = await browser.submit("/parts/schedule", **form)
    job = await browser.submit("/jobs", name="daily", handler="test.echo", **form)
    refused = await browser.submit(f"{here}/delete")
    page = (await browser.get(here)).text
    wrong = await browser.submit(f"{here}/edit", source="list", days="someday")
    changed = await browser.submit(f"{here}/edit", source="list", days="sun", version="1")

    assert "left out: days off" in preview.text
    assert toast(job) == "daily is created."
    assert "is used by daily" in refused.text
    assert '<a href="/jobs/daily">daily</a>' in page
    assert "2026-03-04" in page
    assert (wrong.status_code, "someday" in wrong.text) == (422, True)
    assert toast(changed) == "Saved; its jobs follow it from now on."
    assert (await api(browser, "/jobs/daily"))["calendars"] == {"days off": 2}
    assert "days off" in (await browser.get("/calendars")).text
    await browser.submit(
        "/jobs/daily/edit", **form | {"name": "daily", "handler": "test.echo", "skip_on": "", "shift": "none"}
    )
    assert (await api(browser, "/jobs/daily"))["skip_on"] == []
    await browser.submit(f"{here}/delete")
    assert (await browser.get(here)).status_code == 404


async def test_the_form_of_a_job_offers_the_calendars_and_keeps_those_that_were_ticked(browser: Browser) -> None:
    assert "There is no calendar yet" in (await browser.get("/jobs/new")).text
    for name, days in (("closing", "12-25"), ("weekend", "sat sun")):
        await browser.submit("/calendars", name=name, source="list", days=days)
    form = {"kind": "cron", "schedule": "0 9 * * *", "timezone": "UTC", "name": "daily", "handler": "test.echo"}

    await browser.submit("/jobs", **form, skip_on=["", "closing", "weekend"], only_on="", shift="none")
    page = (await browser.get("/jobs/daily/edit")).text
    await browser.submit("/jobs/daily/edit", **form, skip_on=["", "weekend"], only_on=["", "closing"], shift="none")

    assert re.findall(r'name="skip_on" value="(\w+)" checked', page) == ["closing", "weekend"]
    assert re.findall(r'name="only_on" value="(\w+)">', page) == ["closing", "weekend"]
    job = await api(browser, "/jobs/daily")
    assert (job["skip_on"], job["only_on"]) == (["weekend"], ["closing"])


async def test_the_page_of_a_job_says_which_days_are_left_out_and_by_which_calendar(browser: Browser) -> None:
    await browser.submit("/calendars", name="weekend", source="list", days="sat sun")
    await browser.post(
        "/api/v1/jobs", json={"name": "daily", "handler": "test.echo", "schedule": "0 9 * * *", "skip_on": ["weekend"]}
    )

    schedule = (await browser.get("/jobs/daily?tab=schedule")).text

    assert 'leaves out <a href="/calendars/weekend">weekend</a>' in schedule
    # Now is Monday, 2 March 2026.
    assert "next Sat 7 Mar 2026, Sun 8 Mar 2026, Sat 14 Mar 2026" in schedule
    assert "this and 1 more are left out: weekend" in schedule
    for tab in ("overview", "settings"):
        assert 'href="/calendars/weekend">weekend</a>' in (await browser.get(f"/jobs/daily?tab={tab}")).text, tab


async def test_the_versions_of_a_calendar_say_what_they_changed(browser: Browser) -> None:
    await browser.submit("/calendars", name="closing", source="list", days="2026-12-24 2026-12-25")
    await browser.submit("/calendars/closing/edit", source="list", days="2026-12-25 2026-12-26", version="1")

    present = (await browser.get("/calendars/closing")).text
    earlier = (await browser.get("/calendars/closing?version=1")).text

    assert '<ins class="mono">+2026-12-26</ins>' in present
    assert '<del class="mono">2026-12-24</del>' in present
    assert "Sat 26 Dec 2026" in present
    assert "is an earlier one" not in present
    assert "Version 1 is an earlier one" in earlier
    assert "The first version." in earlier
    assert "Thu 24 Dec 2026" in earlier
    assert (await browser.get("/calendars/closing?version=nonsense")).text.count("is an earlier one") == 0


async def test_a_job_becomes_a_template_without_what_it_has_become(browser: Browser, ids: Ids) -> None:
    page = await browser.get(f"/templates/new?job={ids['cron']}")

    assert "30 2 * * *" in page.text
    assert "next_run_at" not in page.text


async def test_the_audit_calls_jobs_by_their_names(browser: Browser, store: Store) -> None:
    job = await make_job(store, name="nightly")
    await browser.submit(f"/jobs/{job.id}/pause", reason="maintenance")

    page = (await browser.get("/audit")).text

    assert f'<a href="/jobs/{job.id}">nightly</a>' in page
    assert f'href="/audit?subject=job%3A{job.id}"' in page
    assert f">job:…{str(job.id)[-6:]}</a>" in page
    assert (await browser.get(f"/audit?subject=job:{job.id}")).text.count("<article") == 1
