"""`@tb.before_enqueue`: code of a program that sees every enqueue, adds meta, changes options, and refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import asyncpg
import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from timeball import InvalidInput, PendingEnqueue, Settings, Timeball

Rows = Callable[[str], list[dict[str, Any]]]
tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


@pytest.fixture
def seen(tb: Timeball) -> list[tuple[str, Any, dict[str, Any]]]:
    """What a hook saw that adds the tenant: the handler, the calls and the options."""
    seen: list[tuple[str, Any, dict[str, Any]]] = []

    @tb.before_enqueue
    def add_tenant(enqueue: PendingEnqueue) -> None:
        seen.append((enqueue.handler, enqueue.calls, dict(enqueue.options)))
        if name := tenant.get():
            enqueue.meta.setdefault("tenant", name)

    return seen


@pytest.fixture
def as_acme() -> Iterator[None]:
    token = tenant.set("acme")
    yield
    tenant.reset(token)


async def one(handle: Any, _settings: Settings) -> None:
    await handle.aenqueue(3)


async def one_without_await(handle: Any, _settings: Settings) -> None:
    handle.enqueue(3)


async def many(handle: Any, _settings: Settings) -> None:
    await handle.aenqueue_many([handle.call(3)])


async def in_a_transaction(handle: Any, settings: Settings) -> None:
    connection = await asyncpg.connect(settings.database_url)
    try:
        async with connection.transaction():
            await handle.options(connection=connection).aenqueue(3)
    finally:
        await connection.close()


async def on_a_schedule(handle: Any, _settings: Settings) -> None:
    await handle.aschedule("0 7 * * *", name="nightly", arguments={"number": 3})


async def many_schedules(handle: Any, _settings: Settings) -> None:
    await handle.aschedule_many([{"cron": "0 7 * * *", "name": "nightly", "arguments": {"number": 3}}])


@ON_ONE_SERVER
@pytest.mark.parametrize("enqueue", [one, one_without_await, many, in_a_transaction, on_a_schedule, many_schedules])
async def test_every_enqueue_and_schedule_is_seen_before_it_is_made(
    tb: Timeball,
    settings: Settings,
    rows: Rows,
    seen: list[Any],
    as_acme: None,
    enqueue: Callable[..., Awaitable[None]],
) -> None:
    @tb.handler(name="noted")
    def noted(number: int) -> None: ...

    await enqueue(noted, settings)

    assert [(handler, calls) for handler, calls, _ in seen] == [("noted", [{"number": 3}])]
    assert [row["meta"] for row in rows("SELECT meta FROM timeball.job")] == [{"tenant": "acme"}]


@ON_ONE_SERVER
async def test_a_declared_schedule_is_seen_when_it_becomes_a_job(
    tb: Timeball, rows: Rows, seen: list[Any], as_acme: None
) -> None:
    @tb.cron("0 7 * * *", name="nightly", meta={"of": "code"})
    def noted() -> None: ...

    assert seen == []
    await tb.async_sync_schedules()

    ((job),) = rows("SELECT name, meta FROM timeball.job")
    assert (job["name"], job["meta"]) == ("nightly", {"of": "code", "tenant": "acme"})
    assert [handler for handler, _, _ in seen] == [noted.name]


@ON_ONE_SERVER
async def test_a_handler_that_is_declared_elsewhere_is_seen_too(
    tb: Timeball, rows: Rows, seen: list[Any], as_acme: None
) -> None:
    await tb.aenqueue("http.webhook", {"url": "https://example.com"}, unchecked=True, queue="web")

    assert seen == [("http.webhook", [{"url": "https://example.com"}], {"unchecked": True, "queue": "web"})]
    assert [row["meta"] for row in rows("SELECT meta FROM timeball.job")] == [{"tenant": "acme"}]


@ON_ONE_SERVER
async def test_a_hook_changes_options_and_the_words_of_the_caller_go_before_its_meta(
    tb: Timeball, rows: Rows, seen: list[Any], as_acme: None
) -> None:
    @tb.before_enqueue
    def lower(enqueue: PendingEnqueue) -> None:
        assert enqueue.arguments == {"number": 3}
        if enqueue.meta["tenant"] == "busy":
            enqueue.options["priority"] = 5

    @tb.handler(name="noted")
    def noted(number: int) -> None: ...

    busy = noted.options(meta={"tenant": "busy"}, queue="mail")
    for handle in (noted, busy, noted, busy):
        await handle.aenqueue(3)

    jobs = rows("SELECT queue, priority, meta->>'tenant' AS tenant FROM timeball.job ORDER BY id")
    usual = {"queue": "default", "priority": 50, "tenant": "acme"}
    lowered = {"queue": "mail", "priority": 5, "tenant": "busy"}
    assert jobs == [usual, lowered, usual, lowered]


@ON_ONE_SERVER
async def test_a_call_that_follows_is_seen_for_each_enqueue_anew(
    tb: Timeball, rows: Rows, seen: list[Any], as_acme: None
) -> None:
    @tb.handler(name="after")
    def after(number: int) -> None: ...

    @tb.handler(name="noted")
    def noted(number: int) -> None: ...

    both = noted.options(meta={"tenant": "own"}, on_success=after.call(7))
    await both.aenqueue(3)
    tenant.set("globex")
    await both.aenqueue(3)

    follow_ups = rows("SELECT on_success FROM timeball.job ORDER BY id")
    assert [row["on_success"]["meta"] for row in follow_ups] == [{"tenant": "acme"}, {"tenant": "globex"}]
    assert [handler for handler, _, _ in seen] == ["noted", "after", "noted", "after"]


@ON_ONE_SERVER
async def test_a_hook_refuses_by_raising_and_nothing_is_written(tb: Timeball, rows: Rows) -> None:
    @tb.before_enqueue
    def check_quota(enqueue: PendingEnqueue) -> None:
        if len(enqueue.calls) > 1:
            raise PermissionError("the quota is used up")

    @tb.handler(name="noted")
    def noted(number: int) -> None: ...

    with pytest.raises(PermissionError, match="the quota is used up") as refused:
        noted.enqueue_many([noted.call(1), noted.call(2)])

    assert "check_quota, which @tb.before_enqueue has registered, at <enqueue of noted>" in refused.value.__notes__[0]
    assert rows("SELECT id FROM timeball.job") == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda enqueue: enqueue.options.update(countdown=5), "has no option 'countdown'"),
        (lambda enqueue: enqueue.meta.update(words="x" * 5_000), "meta has 5012 bytes as JSON, expected at most 4096"),
        (lambda enqueue: enqueue.meta.update(at=object()), "meta is not JSON"),
        (lambda enqueue: setattr(enqueue, "meta", ["acme"]), r"meta is .*, expected a JSON object"),
    ],
)
def test_what_a_hook_makes_of_an_enqueue_is_checked(change: Callable[[Any], object], complaint: str) -> None:
    tb = Timeball()
    tb.before_enqueue(change)
    handle = tb.handler(name="noted")(_noted)

    with pytest.raises(InvalidInput, match=complaint) as refused:
        handle.enqueue(3)

    assert "which @tb.before_enqueue has registered" in refused.value.__notes__[-1]


def _noted(number: int) -> None: ...


def test_a_hook_cannot_change_the_meta_that_others_are_enqueued_with(tb: Timeball) -> None:
    given: dict[str, Any] = {"of": {"depth": 1}}
    refused: list[PendingEnqueue] = []

    @tb.before_enqueue
    def change(enqueue: PendingEnqueue) -> None:
        enqueue.meta["of"]["depth"] = 2
        refused.append(enqueue)
        raise PermissionError

    with pytest.raises(PermissionError):
        tb.handler(name="noted")(_noted).options(meta=given).enqueue(3)

    assert (given, refused[0].meta) == ({"of": {"depth": 1}}, {"of": {"depth": 2}})


async def _async_hook(enqueue: PendingEnqueue) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (_async_hook, "_async_hook, which is async or a generator, expected a plain function"),
        (lambda: None, "expected a function that takes the enqueue"),
        (None, "found None"),
    ],
)
def test_what_cannot_be_called_before_an_enqueue_is_refused_at_once(function: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Timeball().before_enqueue(function)


@pytest.mark.parametrize("meta", [["acme"], "acme", 5])
def test_meta_that_is_no_object_is_refused_before_anything_is_asked(meta: Any) -> None:
    """Without a database: at the call."""
    handle = Timeball(database_url="postgresql://nowhere.invalid/x").handler(name="noted")(_noted)

    with pytest.raises(InvalidInput, match=r"meta is .*, expected a JSON object"):
        handle.options(meta=meta).enqueue(3)
