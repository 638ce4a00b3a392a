"""Every field of a job stands in the card of its section, in the form and on the page of the job."""

from __future__ import annotations

import re
from html import unescape

import pytest

from tests.api.test_job_fields import CALENDARS, CAUSE, ENQUEUED, JOBS
from tests.dashboard.conftest import Browser
from timeball.domain.job_fields import SPEC_FIELDS, Section


def cards(page: str) -> dict[str, str]:
    """The cards of a page by their headings."""
    sections = re.findall(r'<section class="card"><header><h2>(.*?)</h2>(.*?)</section>', page, re.DOTALL)
    return dict(sections)


@pytest.mark.parametrize("is_new", [True, False])
async def test_the_form_has_every_field_in_the_card_of_its_section(browser: Browser, is_new: bool) -> None:
    await browser.post("/api/v1/jobs", json={"name": "there", "handler": "test.echo"})

    form = cards((await browser.get("/jobs/new" if is_new else "/jobs/there/edit")).text)

    inputs = {section: set(re.findall(r'id="f-(\w+)"', form[section])) for section in Section}
    # An interval counts from `scheduled_at`, which has an input of its own there.
    assert inputs == {
        section: {line.bare_name for line in SPEC_FIELDS.values() if line.section is section}
        | ({"first_at"} if section is Section.WHEN else set())
        for section in Section
    }


async def test_the_page_of_a_job_has_every_field_in_the_card_of_its_section(browser: Browser) -> None:
    shown: set[str] = set()
    for name, days in CALENDARS.items():
        await browser.post("/api/v1/calendars", json={"name": name, "days": days})
    await browser.post("/api/v1/jobs", json=CAUSE)
    for fields in ({**ENQUEUED, "scheduled_at": "2098-02-01T00:00:00Z"}, *JOBS.values()):
        # A field without a value is not shown, so this one gets a value.
        job = fields | {"timeout_ms": 5_000}
        created = await browser.post("/api/v1/jobs", json=job)
        assert created.status_code == 201, created.text
        settings = cards((await browser.get(f"/jobs/{created.json()['id']}", params={"tab": "settings"})).text)
        await browser.delete(f"/api/v1/jobs/{created.json()['id']}")
        for name in job:
            line = SPEC_FIELDS[name]
            assert f"<dt>{line.label}</dt>" in unescape(settings[line.section]), name
            shown.add(name)

    assert shown == SPEC_FIELDS.keys()


async def test_the_pages_of_a_job_and_of_its_run_show_meta_and_lead_to_what_else_has_it(browser: Browser) -> None:
    meta = {"tenant": "acme", "depth": {"of": 1}, "token": "t0p", "odd name": "x"}
    created = await browser.post("/api/v1/jobs", json={"handler": "test.echo", "meta": meta, "name": "there"})

    of_job = (await browser.get("/jobs/there")).text
    of_run = (await browser.get(f"/executions/{created.json()['execution_id']}")).text

    assert 'href="/jobs?q=meta.tenant%3Aacme">tenant: acme</a>' in of_job
    assert 'href="/executions?q=meta.tenant%3Aacme">tenant: acme</a>' in of_run
    for page in (of_job, of_run):
        assert '<span class="tag">odd name: x</span>' in page
        assert "t0p" not in page


async def test_a_recurrence_rule_is_edited_where_a_cron_expression_is(browser: Browser) -> None:
    await browser.post("/api/v1/calendars", json={"name": "closed", "days": ["12-25"]})
    rule = "DTSTART:20260105T093000 RRULE:FREQ=MONTHLY;BYDAY=-1FR"
    days = {"skip_on": ["closed"], "shift": "next"}
    await browser.post("/api/v1/jobs", json={"name": "there", "handler": "test.echo", "schedule": rule, **days})

    form = cards((await browser.get("/jobs/there/edit")).text)["When"]
    schedule = (await browser.get("/jobs/there?tab=schedule")).text

    assert f'value="{rule}"' in form
    assert re.search(r'value="cron" checked', form)
    assert "Every month on the last Friday at 09:30 (UTC)" in schedule
    assert f"<dt>{SPEC_FIELDS['shift'].label}</dt>" in unescape(schedule)


async def test_the_page_of_a_job_shows_its_payload_and_its_tags(browser: Browser) -> None:
    job = {"name": "there", "handler": "test.echo", "payload": {"pages": 3}, "tags": ["red", "blue"]}
    await browser.post("/api/v1/jobs", json=job)

    what = cards((await browser.get("/jobs/there?tab=settings")).text)["What"]

    assert '"pages": 3' in unescape(what)
    assert re.findall(r'class="tag" [^>]*>(\w+)<', what) == ["red", "blue"]


async def test_the_trace_of_a_run_is_shown_and_is_no_meta(browser: Browser) -> None:
    meta = {"tenant": "acme", "$trace": {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}}
    created = await browser.post("/api/v1/jobs", json={"handler": "test.echo", "meta": meta, "name": "there"})
    execution = created.json()["execution_id"]

    of_run = (await browser.get(f"/executions/{execution}")).text
    of_job = (await browser.get("/jobs/there")).text
    shown = (await browser.get(f"/api/v1/executions/{execution}")).json()

    assert f'<dt>Trace</dt><dd class="mono">{"ab" * 16}</dd>' in of_run
    assert "$trace" not in of_run + of_job
    assert (shown["trace_id"], shown["meta"]) == ("ab" * 16, {"tenant": "acme"})
    assert created.json()["meta"] == {"tenant": "acme"}
