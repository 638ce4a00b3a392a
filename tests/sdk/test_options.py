"""Every option in Python becomes a field of the stored job, for every kind of enqueue and declaration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from tests.support.factories import WHOLE_CALL
from timeball import Settings, Timeball
from timeball.application.commands.calendars import DaysRequest
from timeball.domain.job_fields import LIST_FIELDS, SPEC_FIELDS
from timeball.errors import InvalidInput
from timeball.runtime import open_runtime
from timeball.sdk.options import EnqueueOptions, ScheduleOptions, job_fields
from timeball.sdk.runs import Run

Rows = Callable[[str], list[dict[str, Any]]]


class FollowUp:
    """A call that is not made yet."""

    def __init__(self, handler: str) -> None:
        self._handler = handler

    def as_follow_up(self) -> dict[str, Any]:
        return {**WHOLE_CALL, "handler": self._handler}


COMMON: dict[str, Any] = {
    "queue": "7",
    "priority": 81,
    "retries": 5,
    "max_lost": 2,
    "timeout": None,
    "backoff": "250ms",
    "max_backoff": "9s",
    "delivery": "at_most_once",
    "max_running": 4,
    "expires": "71s",
    "tags": ["1", "b,c"],
    "limit_key": "2026",
    "timezone": "Europe/Berlin",
}
COMMON |= {"meta": {"tenant": "acme", "depth": 3}}
COMMON |= {"on_success": FollowUp("after.success"), "on_failure": FollowUp("after.failure")}
ENQUEUE: dict[str, Any] = COMMON | {"key": "31", "if_exists": "replace", "unique_for": "73s"}
OF_KEYS_AND_LIMITS = {"key", "if_exists", "unique_for", "max_running", "limit_key"}
LATER: dict[str, Any] = ENQUEUE | {"at": datetime(2098, 2, 1, tzinfo=UTC)}
SCHEDULE: dict[str, Any] = COMMON | {
    "name": "2024",
    "description": "what it is for",
    "owner": "17",
    "on_gap": "skip",
    "on_repeat": "both",
    "skip_on": ["closed"],
    "only_on": ["open"],
    "shift": "none",
    "misfire": "all",
    "misfire_grace": "31s",
    "misfire_cap": 17,
    "misfire_max_age": "1h",
    "expect": {"start_within": "1m", "succeed_every": "26h"},
    "overlap": "allow",
    "jitter": "3s",
    "starts_at": datetime(2098, 1, 1, tzinfo=UTC),
    "ends_at": datetime(2099, 1, 1, tzinfo=UTC),
    "max_executions": 12,
    "pause_after_failures": 6,
}


def stored(options: dict[str, Any]) -> dict[str, Any]:
    """The columns of a job for these options; the key of a one-off is in another table."""
    fields = job_fields(options)
    del fields["delivery"]
    fields.pop("unique_key", None)
    fields |= {name: list(fields[name]) for name in LIST_FIELDS if name in fields}
    if fields.get("backoff_ms") == []:
        fields["backoff_ms"] = None
    if fields.get("shift") == "none":
        fields["shift"] = None
    return fields | {"at_most_once": True}


def test_every_option_has_a_value_here() -> None:
    assert set(LATER) == set(EnqueueOptions.__optional_keys__) - {"delay", "connection", "unchecked"}
    assert set(SCHEDULE) == set(ScheduleOptions.__optional_keys__) - {"arguments"}
    beside = {"handler", "payload", "schedule", "interval_seconds", "after"}
    assert {*job_fields(LATER), *job_fields(SCHEDULE), *beside} == SPEC_FIELDS.keys()


async def single(handle: Any, _settings: Settings) -> list[Run[Any]]:
    return [await handle.aenqueue(3)]


async def many(handle: Any, _settings: Settings) -> list[Run[Any]]:
    return list(await handle.aenqueue_many([handle.call(3)]))


async def from_a_thread(handle: Any, _settings: Settings) -> list[Run[Any]]:
    return [handle.enqueue(3)]


async def in_a_transaction(handle: Any, settings: Settings) -> list[Run[Any]]:
    connection = await asyncpg.connect(settings.database_url)
    try:
        async with connection.transaction():
            return [await handle.options(connection=connection).aenqueue(3)]
    finally:
        await connection.close()


@ON_ONE_SERVER
@pytest.mark.parametrize("enqueue", [single, many, from_a_thread, in_a_transaction])
@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 600),
        ({"expires": "71s"}, 71),
        ({"expires": "71s", "delay": "1h"}, 71),
        ({"expires": None}, None),
        ({"expires": datetime(2098, 1, 1, tzinfo=UTC)}, datetime(2098, 1, 1, tzinfo=UTC)),
    ],
    ids=["of the handler", "a span", "after a delay", "never", "an instant"],
)
async def test_an_enqueue_expires_as_its_handler_or_its_options_say(
    tb: Timeball,
    settings: Settings,
    rows: Rows,
    enqueue: Callable[..., Awaitable[list[Run[Any]]]],
    options: dict[str, Any],
    seconds: int | datetime | None,
) -> None:
    @tb.handler(expires="10m")
    def noted(number: int) -> int:
        return number

    await enqueue(noted.options(**options) if options else noted, settings)

    ((run),) = rows("SELECT run_at, expires_at FROM timeball.execution")
    is_span = isinstance(seconds, int)
    assert run["expires_at"] == (run["run_at"] + timedelta(seconds=seconds) if is_span else seconds)


def test_an_instant_is_no_option_of_a_handler(tb: Timeball) -> None:
    with pytest.raises(InvalidInput, match="expires of a handler is 2098-01-01 00:00:00"):

        @tb.handler(expires=datetime(2098, 1, 1, tzinfo=UTC))
        def noted() -> None: ...


@ON_ONE_SERVER
@pytest.mark.parametrize("enqueue", [single, many, from_a_thread, in_a_transaction])
@pytest.mark.parametrize("options", [ENQUEUE, LATER], ids=["now", "later"])
async def test_every_option_of_an_enqueue_is_kept(
    tb: Timeball,
    settings: Settings,
    rows: Rows,
    enqueue: Callable[..., Awaitable[list[Run[Any]]]],
    options: dict[str, Any],
) -> None:
    @tb.handler
    def noted(number: int) -> int:
        return number

    if enqueue is many:  # it gives its options to every call, so it takes no key
        options = {word: value for word, value in options.items() if word not in ("key", "if_exists", "unique_for")}

    await enqueue(noted.options(**options), settings)

    (job,) = rows("SELECT * FROM timeball.job")
    expected = stored(options)
    assert {name: job[name] for name in expected} == expected
    assert [key["key"] for key in rows("SELECT * FROM timeball.live_key")] == ([] if enqueue is many else ["31"])


@ON_ONE_SERVER
@pytest.mark.parametrize("options", [ENQUEUE, LATER], ids=["now", "later"])
async def test_every_option_is_kept_where_alike_jobs_are_written_together(
    tb: Timeball, rows: Rows, options: dict[str, Any]
) -> None:
    """Jobs with a key or a limit are written like single ones; alike jobs without have statements of their own."""

    @tb.handler
    def noted(number: int) -> int:
        return number

    alike = {word: value for word, value in options.items() if word not in OF_KEYS_AND_LIMITS}

    await noted.options(**alike).aenqueue_many([noted.call(3), noted.call(4)])

    jobs = rows("SELECT * FROM timeball.job")
    expected = stored(alike)
    assert [{name: job[name] for name in expected} for job in jobs] == [expected] * 2


@ON_ONE_SERVER
@pytest.mark.parametrize("rhythm", ["cron", "every"])
async def test_every_option_of_a_schedule_is_kept(tb: Timeball, settings: Settings, rows: Rows, rhythm: str) -> None:
    async with open_runtime(settings) as parts:
        for name in ("closed", "open"):
            await parts.commands.calendars.create(name, DaysRequest(days=["mon" if name == "open" else "12-25"]))
    # Only a cron schedule has a wall time that it keeps on another day.
    options = SCHEDULE | {"shift": "previous" if rhythm == "cron" else "none"}

    @getattr(tb, rhythm)("30 2 * * *" if rhythm == "cron" else "77s", arguments={"number": 3}, **options)
    def noted(number: int) -> int:
        return number

    await tb.async_sync_schedules()

    (job,) = rows("SELECT * FROM timeball.job")
    # Only cron has options for changes of the clock.
    expected = stored(options) if rhythm == "cron" else stored(options) | {"on_gap": None, "on_repeat": None}
    assert {name: job[name] for name in expected} == expected
