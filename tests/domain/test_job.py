"""Jobs: every wish is made a job or refused, and a refusal names the field, what was found and what was expected."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from timeball.domain.job import Job, copy_spec, define_job, redefine_job, spec_of
from timeball.domain.job_fields import SPEC_FIELDS, JobSpec
from timeball.domain.policies import Delivery, Misfire, Overlap
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once, OnGap, OnRepeat
from timeball.domain.values.ids import JobId
from timeball.errors import InvalidInput

NOW = utc(2026, 3, 2, 12)
JOB = JobId(UUID("0193c8a2-5d1e-7abc-8def-0123456789ab"))
SHARDS = 64

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
anything = json_values | st.datetimes() | st.binary(max_size=4) | st.just(object())


def make(**fields: Any) -> Job:
    return define_job(JobSpec(**{"handler": "app:work"} | fields), JOB, NOW, SHARDS)


def refusal_of(**fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refusal:
        make(**fields)
    return refusal.value


# defined


def test_a_manual_job_says_so() -> None:
    job = make(name="by-hand", schedule="manual")

    assert isinstance(job.rule, Manual)
    assert spec_of(job).schedule == "manual"
    assert (job.shard, job.version, job.payload, job.queue, job.priority) == (
        JOB.int % 2**32 % SHARDS,
        1,
        "{}",
        "default",
        50,
    )
    assert not job.is_enqueued
    assert not job.is_paused


def test_a_job_with_no_time_runs_now() -> None:
    assert make(name="hello").rule == Once(scheduled_at=NOW)
    assert make().is_enqueued


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"schedule": "@daily"}, {"schedule": None}),
        ({"schedule": "manual"}, {"schedule": None}),
        ({"interval_seconds": 60}, {"interval_seconds": None}),
        ({"interval_seconds": 60}, {"interval_seconds": None, "scheduled_at": None}),
        ({"scheduled_at": NOW}, {"scheduled_at": None}),
    ],
)
def test_an_edit_that_takes_the_time_away_is_refused(fields: dict[str, Any], change: dict[str, Any]) -> None:
    job = make(name="a-job", **fields)

    with pytest.raises(InvalidInput, match="would have no time") as refusal:
        redefine_job(job, change, NOW, SHARDS)

    assert refusal.value.field == next(iter(change))
    assert '"schedule": "manual"' in (refusal.value.hint or "")


def test_every_field_of_a_wish_ends_up_in_the_job() -> None:
    job = make(
        payload={"a": 1},
        name="nightly",
        description="says why",
        schedule="30 2 * * *",
        timezone="Europe/Berlin",
        on_gap="skip",
        on_repeat="both",
        starts_at="2026-04-01T00:00",
        ends_at="2026-05-01T00:00Z",
        max_executions=9,
        jitter_seconds=8,
        misfire="all",
        misfire_grace_seconds=7,
        misfire_cap=6,
        misfire_max_age_seconds=5,
        overlap="skip",
        queue="mail",
        priority=4,
        max_retries=3,
        max_lost=2,
        initial_backoff_ms=11,
        max_backoff_ms=12,
        timeout_ms=13,
        delivery="at_most_once",
        max_running=14,
        limit_key="smtp",
        unique_key="once",
        tags=["a", "b", "a"],
    )

    assert job.rule == Cron(
        expression="30 2 * * *",
        timezone="Europe/Berlin",
        on_gap=OnGap.SKIP,
        on_repeat=OnRepeat.BOTH,
        starts_at=utc(2026, 3, 31, 22),
        ends_at=utc(2026, 5, 1),
    )
    assert (job.payload, job.name, job.description, job.timezone) == (
        '{"a":1}',
        "nightly",
        "says why",
        "Europe/Berlin",
    )
    assert (job.max_executions, job.jitter_seconds) == (9, 8)
    assert (job.misfire.policy, job.misfire.grace, job.misfire.cap, job.misfire.max_age) == (
        Misfire.ALL,
        timedelta(seconds=7),
        6,
        timedelta(seconds=5),
    )
    assert (job.overlap, job.queue, job.priority) == (Overlap.SKIP, "mail", 4)
    assert (job.retry.max_retries, job.retry.max_lost) == (3, 2)
    assert (job.retry.initial_backoff_ms, job.retry.max_backoff_ms, job.timeout_ms) == (11, 12, 13)
    assert (job.delivery, job.max_running, job.limit_key) == (Delivery.AT_MOST_ONCE, 14, "smtp")
    assert (job.unique_key, job.tags) == ("once", ("a", "b"))


def test_a_one_off_without_a_name_bears_its_executions_id() -> None:
    assert make(scheduled_at=NOW).is_enqueued
    assert not make(scheduled_at=NOW, name="launch").is_enqueued
    assert not make(interval_seconds=60).is_enqueued


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_running": 3}, 3),
        ({"interval_seconds": 60, "overlap": "queue"}, 1),
        ({"interval_seconds": 60, "overlap": "cancel_running", "max_running": 5}, 1),
        ({"interval_seconds": 60, "overlap": "skip"}, None),
        ({"interval_seconds": 60, "overlap": "allow", "max_running": 5}, 5),
        ({"schedule": "manual", "overlap": "queue"}, None),  # a manual job has no occurrences that could overlap
    ],
)
def test_what_limits_a_job(fields: dict[str, Any], limit: int | None) -> None:
    job = make(**fields)

    assert job.effective_limit == limit
    assert job.limit_key == (None if limit is None else f"job:{JOB}")


@pytest.mark.parametrize("overlap", [policy for policy in Overlap if policy.is_serial])
def test_a_shared_limit_that_lets_a_job_overlap_itself_is_refused(overlap: str) -> None:
    shared = {"interval_seconds": 60, "overlap": overlap, "limit_key": "disk"}
    assert make(**shared, max_running=1).effective_limit == make(**shared).effective_limit == 1

    with pytest.raises(InvalidInput, match=f"overlap {overlap} .* max_running lets 3 .* expected max_running 1"):
        make(**shared, max_running=3)


# jitter


@given(st.uuids(), st.integers(0, 86_400))
@settings(deadline=None)
def test_jitter_is_the_same_for_a_job_for_ever_and_within_its_bounds(job_id: UUID, jitter_seconds: int) -> None:
    spec = JobSpec(handler="app:work", interval_seconds=60, jitter_seconds=jitter_seconds)
    job = define_job(spec, JobId(job_id), NOW, SHARDS)

    assert timedelta(0) <= job.jitter <= timedelta(seconds=jitter_seconds)
    assert replace(job, version=7, name="other").jitter == job.jitter


def test_jitter_spreads_jobs() -> None:
    spec = JobSpec(handler="app:work", interval_seconds=60, jitter_seconds=60)

    found = {define_job(spec, JobId(UUID(int=number)), NOW, SHARDS).jitter for number in range(500)}

    assert len(found) == 500
    assert max(found) - min(found) > timedelta(seconds=50)


# refused

EXPECTED: list[tuple[str, Any, str]] = [
    ("name", "", "name has 0 characters, expected 1 to 200"),
    ("name", 7, "name is int, expected text"),
    ("handler", "  ", "handler has 2 characters, expected 1 to 200"),
    ("handler", None, "handler is NoneType, expected text"),
    ("description", 7, "description is not text of at most 10000 characters"),
    ("payload", {1, 2}, "payload is not JSON"),
    ("schedule", "0 25 * * *", 'cron "0 25 * * *": hour is 25, expected 0-23'),
    ("schedule", 7, "schedule is int, expected text"),
    ("interval_seconds", 0, "interval_seconds is 0, expected whole seconds from 1"),
    ("interval_seconds", -5, "interval_seconds is -5, expected whole seconds from 1"),
    ("interval_seconds", 1.5, "interval_seconds is 1.5, expected whole seconds from 1"),
    ("interval_seconds", float("nan"), "interval_seconds is nan, expected whole seconds from 1"),
    ("scheduled_at", "tomorrow", "scheduled_at"),
    ("scheduled_at", utc(2200, 1, 1), "expected an instant from 1970-01-01T00:00:00Z to 2199-12-31"),
    ("timezone", "Mars/Base", "Mars/Base"),
    ("timezone", None, "timezone is NoneType, expected text"),
    ("on_gap", "explode", 'on_gap is "explode", expected next_valid or skip'),
    ("on_repeat", "thrice", 'on_repeat is "thrice", expected first, second or both'),
    ("skip_on", "holidays", "skip_on is str, expected a list of texts"),
    ("skip_on", ["a", 7], "skip_on is int, expected text"),
    ("only_on", [str(number) for number in range(11)], "only_on has 11 entries, expected at most 10"),
    ("shift", "after", 'shift is "after", expected none, next or previous'),
    ("shift", "next", "shift is next, but skip_on names no calendar whose days could move"),
    ("starts_at", "soon", "starts_at"),
    ("ends_at", "never", "ends_at"),
    ("max_executions", 0, "max_executions is 0, expected 1 to"),
    ("pause_after_failures", 0, "pause_after_failures is 0, expected 1 to 1000"),
    ("meta", [], "meta"),
    ("on_success", 7, "on_success"),
    ("on_failure", [], "on_failure"),
    ("expect", [], "expect"),
    ("max_executions", "5", 'max_executions is "5", expected a whole number from 1'),
    ("jitter_seconds", -1, "jitter_seconds is -1, expected 0 to 86400"),
    ("jitter_seconds", 1.5, "jitter_seconds is 1.5, expected a whole number from 0 to 86400"),
    ("misfire", "ignore", 'misfire is "ignore", expected latest, skip or all'),
    ("misfire_grace_seconds", -1, "misfire_grace_seconds is -1, expected 0 to"),
    ("misfire_cap", 0, "misfire_cap is 0, expected 1 to 10000"),
    ("misfire_max_age_seconds", -1, "misfire_max_age_seconds is -1, expected 0 to"),
    ("overlap", "explode", 'overlap is "explode", expected skip, allow, queue, cancel_running or latest'),
    ("queue", "", "queue has 0 characters, expected 1 to 200"),
    ("priority", 101, "priority is 101, expected 0 to 100"),
    ("priority", True, "priority is true, expected a whole number from 0 to 100"),
    ("max_retries", -1, "max_retries is -1, expected 0 to"),
    ("max_lost", 0, "max_lost is 0, expected 1 to"),
    ("initial_backoff_ms", -1, "initial_backoff_ms is -1, expected 0 to"),
    ("max_backoff_ms", 10**20, "max_backoff_ms is 100000000000000000000, expected 0 to"),
    ("backoff_ms", "5s", "backoff_ms is str, expected a list of milliseconds"),
    ("backoff_ms", [5, "1m"], 'backoff_ms is "1m", expected a whole number from 0'),
    ("backoff_ms", [5, -1], "backoff_ms is -1, expected 0 to"),
    ("backoff_ms", [1] * 101, "backoff_ms has 101 entries, expected at most 100"),
    ("timeout_ms", 0, "timeout_ms is 0, expected 1 to"),
    ("delivery", "exactly_once", 'delivery is "exactly_once", expected at_least_once or at_most_once'),
    ("max_running", 0, "max_running is 0, expected 1 to"),
    ("limit_key", "", "limit_key has 0 characters, expected 1 to 200"),
    ("unique_key", "x" * 201, "unique_key has 201 characters, expected 1 to 200"),
    ("if_exists", "perhaps", 'if_exists is "perhaps", expected keep, replace or extend'),
    ("if_exists", "replace", "if_exists is replace, and there is no unique_key"),
    ("unique_for_seconds", 0, "unique_for_seconds is 0, expected 1 to"),
    ("unique_for_seconds", 60, "unique_for_seconds is 60, and there is no unique_key"),
    ("start_within_seconds", 0, "start_within_seconds is 0, expected 1 to"),
    ("start_within_seconds", "10m", 'start_within_seconds is "10m", expected a whole number from 1'),
    ("expires_at", "soon", "expires_at"),
    ("after", "", "after has 0 characters, expected 1 to 200"),
    ("expires_at", utc(2020, 1, 1), "expires_at is 2020-01-01T00:00:00Z, expected an instant after"),
    ("tags", "mail", "tags is str, expected a list of texts"),
    ("owner", "", "owner has 0 characters, expected 1 to 200"),
    ("owner", 17, "owner is int, expected text"),
    ("tags", ["a", 7], "tags is int, expected text"),
    ("tags", [str(number) for number in range(51)], "tags has 51 entries, expected at most 50"),
]


@pytest.mark.parametrize(("field", "value", "words"), EXPECTED)
def test_a_refusal_names_the_field_what_was_found_and_what_was_expected(field: str, value: Any, words: str) -> None:
    refusal = refusal_of(**{field: value})

    assert refusal.field == field
    assert words in str(refusal)


def test_every_field_of_a_wish_is_checked() -> None:
    assert {field for field, _, _ in EXPECTED} == SPEC_FIELDS.keys()


@given(
    st.sampled_from(sorted(SPEC_FIELDS)),
    anything,
    st.sampled_from([{}, {"interval_seconds": 60}, {"schedule": "@daily"}]),
)
@settings(max_examples=250, deadline=None)
def test_whatever_is_given_for_a_field_is_taken_or_refused_by_name(
    field: str, value: Any, others: dict[str, Any]
) -> None:
    refusal: InvalidInput | None = None
    try:
        make(**others | {field: value})
    except InvalidInput as error:
        refusal = error

    if refusal is not None:
        # A contradiction may be blamed on either of the two that contradict each other.
        # A pointer into an object begins with the name of the field.
        assert refusal.field is not None
        assert refusal.field.partition("/")[0] in {field, *others, "scheduled_at", "max_running"}
        assert len(str(refusal)) < 1_000


@pytest.mark.parametrize("field", ["if_exists", "unique_for_seconds"])
@pytest.mark.parametrize(
    "other", [{"interval_seconds": 60}, {"schedule": "manual"}, {"name": "named", "scheduled_at": NOW}]
)
def test_only_an_enqueue_says_what_becomes_of_its_key(field: str, other: dict[str, Any]) -> None:
    value = {"if_exists": "extend", "unique_for_seconds": 60}[field]

    refusal = refusal_of(**{"unique_key": "k", field: value} | other)

    assert refusal.field == field
    assert "expected only of a one-off without a name" in str(refusal)


def test_a_copy_has_no_key_and_says_nothing_of_it() -> None:
    job = make(scheduled_at=utc(2026, 3, 3), unique_key="k", if_exists="replace", unique_for_seconds=60)

    copy = copy_spec(job, {}, NOW)

    assert (copy.unique_key, copy.if_exists, copy.unique_for_seconds) == (None, "keep", None)


def test_a_limit_key_without_a_limit_is_refused() -> None:
    refusal = refusal_of(limit_key="smtp")

    assert refusal.field == "max_running"
    assert "say how many may run together" in str(refusal)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "@daily", "interval_seconds": 60}, "interval_seconds"),
        ({"schedule": "@daily", "scheduled_at": NOW}, "scheduled_at"),
        ({"schedule": "0 0 30 2 *"}, "schedule"),
        ({"interval_seconds": 60, "ends_at": NOW - timedelta(days=1)}, "ends_at"),
        ({"interval_seconds": 60, "starts_at": NOW, "ends_at": NOW - timedelta(days=1)}, "ends_at"),
        ({"scheduled_at": NOW, "starts_at": NOW + timedelta(days=1)}, "starts_at"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], field: str) -> None:
    assert refusal_of(**fields).field == field


# defined again


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["a", "b"]),
            "description": st.text("xyz", max_size=3),
            "max_executions": st.none() | st.integers(1, 100),
            "jitter_seconds": st.integers(0, 60),
            "misfire": st.sampled_from(Misfire),
            "misfire_grace_seconds": st.integers(0, 600),
            "misfire_cap": st.integers(1, 50),
            "misfire_max_age_seconds": st.none() | st.integers(0, 600),
            "overlap": st.sampled_from(Overlap),
            "queue": st.sampled_from(["mail", "default"]),
            "priority": st.integers(0, 100),
            "max_retries": st.integers(0, 9),
            "max_lost": st.integers(1, 9),
            "initial_backoff_ms": st.integers(0, 9_000),
            "max_backoff_ms": st.integers(0, 9_000),
            "backoff_ms": st.lists(st.integers(0, 9_000), max_size=3),
            "timeout_ms": st.none() | st.integers(1, 9_000),
            "delivery": st.sampled_from(Delivery),
            "max_running": st.integers(1, 9),
            "unique_key": st.none() | st.just("k"),
            "tags": st.lists(st.sampled_from("abc"), max_size=3),
        },
    ),
    st.sampled_from(
        [
            {},
            {"interval_seconds": 60},
            {"interval_seconds": 60, "scheduled_at": NOW + timedelta(seconds=7), "ends_at": NOW + timedelta(days=9)},
            {"schedule": "*/5 * * * *", "timezone": "Europe/Berlin", "on_gap": "skip", "on_repeat": "both"},
            {"scheduled_at": NOW + timedelta(hours=1)},
        ]
    ),
)
@settings(deadline=None)
def test_a_job_defined_again_without_changes_is_the_same_but_for_its_version(
    fields: dict[str, Any], when: dict[str, Any]
) -> None:
    job = make(payload={"a": [1]}, **fields, **when)

    again = redefine_job(job, {}, NOW + timedelta(hours=3), SHARDS)

    assert again == replace(job, version=2)
    assert define_job(replace(spec_of(job), payload={"a": [1]}), JOB, NOW, SHARDS) == job


def test_a_change_keeps_what_it_does_not_name() -> None:
    job = replace(
        make(interval_seconds=60, payload={"a": 1}, queue="mail"),
        version=4,
        declared_by="app",
        paused_at=NOW,
        paused_until=NOW + timedelta(days=1),
        paused_from=NOW,
        paused_left=5,
        pause_reason="tired",
        created_at=NOW,
    )

    changed = redefine_job(job, {"priority": 9}, NOW, SHARDS)

    assert changed == replace(job, priority=9, version=5)


def test_a_payload_can_be_changed() -> None:
    job = make(payload={"a": 1})

    assert redefine_job(job, {"payload": {"b": 2}}, NOW, SHARDS).payload == '{"b":2}'


@pytest.mark.parametrize(
    ("before", "change", "rule"),
    [
        ({"interval_seconds": 60}, {"schedule": "@daily"}, Cron(expression="@daily")),
        ({"scheduled_at": NOW}, {"schedule": "@daily"}, Cron(expression="@daily")),
        (
            {"schedule": "@daily"},
            {"interval_seconds": 60},
            Every(interval_seconds=60, anchor=NOW + timedelta(seconds=60)),
        ),
        ({"schedule": "@daily"}, {"scheduled_at": NOW}, Once(scheduled_at=NOW)),
        (
            {"interval_seconds": 60, "scheduled_at": NOW + timedelta(seconds=7)},
            {"interval_seconds": 30},
            Every(interval_seconds=30, anchor=NOW + timedelta(seconds=7)),
        ),
        ({"interval_seconds": 60}, {"schedule": "manual"}, Manual()),
        ({"schedule": "manual"}, {"scheduled_at": NOW}, Once(scheduled_at=NOW)),
    ],
)
def test_another_kind_of_schedule_replaces_the_old_one(
    before: dict[str, Any], change: dict[str, Any], rule: object
) -> None:
    job = make(name="a", **before)

    changed = redefine_job(job, change, NOW, SHARDS)

    assert type(changed.rule) is type(rule)
    assert changed.rule == rule


def test_a_changed_interval_keeps_its_anchor() -> None:
    job = make(interval_seconds=60)

    changed = redefine_job(job, {"interval_seconds": 90}, NOW + timedelta(days=3), SHARDS)

    assert changed.rule == Every(interval_seconds=90, anchor=NOW + timedelta(seconds=60))


@pytest.mark.parametrize("name", ["cron", "Handler", "id", "version", "paused_at", ""])
def test_unknown_fields_are_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        redefine_job(make(), {"queue": "mail", name: 1}, NOW, SHARDS)

    assert refusal.value.field == name
    assert "interval_seconds" in str(refusal.value)


@pytest.mark.parametrize("time", [{"interval_seconds": 60}, {"schedule": "0 6 * * *"}, {"schedule": "manual"}])
def test_only_a_one_off_expires_at_an_instant(time: dict[str, Any]) -> None:
    new = refusal_of(**time, expires_at=utc(2030, 1, 1))
    with pytest.raises(InvalidInput) as changed:
        redefine_job(make(**time), {"expires_at": utc(2030, 1, 1)}, NOW, SHARDS)

    assert new.field == changed.value.field == "expires_at"
    assert "the job is not a one-off" in str(new)


@pytest.mark.parametrize(("field", "value", "words"), EXPECTED)
def test_a_change_is_checked_like_a_wish(field: str, value: Any, words: str) -> None:
    job = make(name="a", interval_seconds=None)

    with pytest.raises(InvalidInput) as refusal:
        redefine_job(job, {field: value}, NOW, SHARDS)

    assert refusal.value.field == field
    assert words in str(refusal.value)


def test_the_limit_key_of_a_job_that_is_no_longer_limited_goes() -> None:
    job = make(max_running=3)

    free = redefine_job(job, {"max_running": None}, NOW, SHARDS)

    assert (free.limit_key, free.effective_limit) == (None, None)
