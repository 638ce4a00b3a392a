"""Enqueues: what is written, what is returned, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from tests.support.pace import patience
from timeball import (
    Conflict,
    ExecutionFailed,
    InvalidInput,
    NotFound,
    PayloadError,
    ResultTimeout,
    Retry,
    StoreUnavailable,
    Timeball,
    current,
)

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]
Node = Callable[[], AbstractContextManager[None]]


@dataclass
class Receipt:
    order_id: int
    sent_at: datetime


# results


def test_a_result_has_the_annotated_type(tb: Timeball, node: Node) -> None:
    @tb.handler
    def send(order_id: int, at: datetime) -> Receipt:
        return Receipt(order_id, at)

    at = datetime(2030, 1, 1, tzinfo=UTC)
    with node():
        run = send.enqueue(42, at=at)

        assert run.result(timeout=patience(20)) == Receipt(42, at)
        assert run.state() == "succeeded"
        assert run.is_new


async def test_coroutines_enqueue_and_wait_without_blocking(tb: Timeball, node: Node) -> None:
    @tb.handler
    async def double(n: int) -> int:
        return 2 * n

    with node():
        runs = await asyncio.gather(*(double.aenqueue(n) for n in range(20)))

        assert await asyncio.gather(*(run.aresult(timeout="20s") for run in runs)) == [2 * n for n in range(20)]
        assert await runs[0].astate() == "succeeded"


def test_a_result_that_does_not_fit_its_annotation_stays_json(tb: Timeball, node: Node) -> None:
    @tb.handler
    def lie() -> int:
        return "seven"  # type: ignore[return-value]

    with node():
        assert lie.enqueue().result(timeout=patience(20)) == "seven"  # type: ignore[comparison-overlap]


def test_a_dead_execution_raises_its_error(tb: Timeball, node: Node) -> None:
    @tb.handler(retries=0)
    def fail() -> None:
        raise KeyError("order 42")

    with node(), pytest.raises(ExecutionFailed, match=r"exe_\w+ is dead: KeyError: 'order 42'") as caught:
        fail.enqueue().result(timeout=patience(20))

    assert caught.value.state == "dead"


def test_waiting_goes_on_through_retries(tb: Timeball, node: Node) -> None:
    @tb.handler(retries=3, backoff="10ms")
    def third_time_lucky() -> int:
        if current.attempt < 3:
            raise Retry("not yet", after="10ms")
        return current.attempt

    with node():
        assert third_time_lucky.enqueue().result(timeout=patience(20)) == 3


def test_a_result_that_was_too_large_raises(tb: Timeball, node: Node) -> None:
    @tb.handler
    def huge() -> str:
        return "x" * 300_000

    with node(), pytest.raises(PayloadError, match=r"has succeeded, but the result was dropped: it has 300002 bytes"):
        huge.enqueue().result(timeout=patience(20))


def test_a_timeout_names_the_state_and_the_queue(tb: Timeball) -> None:
    @tb.handler(name="send", queue="mail")
    def send() -> None: ...

    run = send.enqueue()

    with pytest.raises(ResultTimeout, match=rf"after 20ms {run.id} is still queued") as caught:
        run.result(timeout=0.02)
    assert caught.value.hint is not None
    assert "queue 'mail'" in caught.value.hint
    with pytest.raises(ResultTimeout, match="after 0s"):
        run.result(timeout=0)


def test_a_cancelled_execution_raises_with_the_reason(tb: Timeball) -> None:
    @tb.handler
    def send() -> None: ...

    run = send.enqueue()

    assert run.cancel("the order is gone")
    assert not run.cancel()
    with pytest.raises(ExecutionFailed, match="is cancelled: the order is gone"):
        run.result(timeout=5)


def test_a_run_is_found_again_by_its_id(tb: Timeball) -> None:
    @tb.handler
    def send() -> None: ...

    run = send.enqueue()

    assert tb.get_run(run.id) == run
    assert tb.get_run(run.id).state() == "queued"
    with pytest.raises(NotFound, match="there is no execution exe_0"):
        tb.get_run("00000000-0000-7000-8000-000000000000").state()
    with pytest.raises(InvalidInput, match="is not an id, expected one like exe_"):
        tb.get_run("42")


# options


def test_options_of_an_enqueue_override_those_of_its_handler(tb: Timeball, rows: Rows) -> None:
    @tb.handler(queue="mail", priority=20, retries=5, timeout="30s", tags=["a"], delivery="at_most_once")
    def send(n: int) -> None: ...

    send.enqueue(1)
    send.options(priority=90, queue="fast", retries=0, timeout=None, tags=("b", "c"), backoff="5s").enqueue(2)

    inherited, overridden = rows("SELECT * FROM timeball.job ORDER BY payload ->> 'n'")
    assert (inherited["queue"], inherited["priority"], inherited["max_retries"], inherited["timeout_ms"]) == (
        "mail",
        20,
        5,
        30_000,
    )
    assert (inherited["tags"], inherited["at_most_once"]) == (["a"], True)
    assert (overridden["queue"], overridden["priority"], overridden["max_retries"]) == ("fast", 90, 0)
    assert (overridden["timeout_ms"], overridden["tags"], overridden["initial_backoff_ms"]) == (None, ["b", "c"], 5_000)


def test_options_are_merged(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send() -> None: ...

    send.options(priority=90).options(queue="fast").options(priority=80).enqueue()

    (job,) = rows("SELECT queue, priority FROM timeball.job")
    assert job == {"queue": "fast", "priority": 80}


def test_a_delay_counts_from_the_database_time(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send() -> None: ...

    run = send.options(delay="10m").enqueue()

    assert run.state() == "scheduled"
    (due,) = rows("SELECT run_at - now() AS ahead FROM timeball.due")
    assert timedelta(minutes=9, seconds=50) < due["ahead"] <= timedelta(minutes=10, seconds=1)


def test_an_instant_is_kept_exactly_and_read_in_its_timezone(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send() -> None: ...

    send.options(at=datetime(2100, 7, 1, 12, 0, 0, 7, tzinfo=UTC)).enqueue()
    send.options(at="2100-07-02 12:00", timezone="Europe/Berlin").enqueue()

    due = rows("SELECT scheduled_for FROM timeball.due ORDER BY 1")
    assert [row["scheduled_for"] for row in due] == [
        datetime(2100, 7, 1, 12, 0, 0, 7, tzinfo=UTC),
        datetime(2100, 7, 2, 10, 0, tzinfo=UTC),
    ]


def test_an_enqueue_with_a_live_key_returns_the_execution_that_holds_it(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    first = send.options(key="r-42").enqueue(1)
    second = send.options(key="r-42").enqueue(2)
    other = send.options(key="r-43").enqueue(3)

    assert (first.is_new, second.is_new, other.is_new) == (True, False, True)
    assert (second.id, second.job_id) == (first.id, first.job_id)
    assert len(rows("SELECT FROM timeball.job")) == 2

    first.cancel()
    assert send.options(key="r-42").enqueue(4).is_new


@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_of_concurrent_enqueues_that_change_what_waits_one_is_new_and_one_is_left(
    tb: Timeball, rows: Rows, policy: Any
) -> None:
    @tb.handler
    def index(number: int) -> None: ...

    calls = index.options(key="only", if_exists=policy, delay="1h")
    runs = await asyncio.gather(*(calls.aenqueue(number) for number in range(50)))
    last = await calls.aenqueue(99)

    assert len({run.id for run in runs} | {last.id}) == 1
    assert sum(run.is_new for run in runs) == 1
    assert rows("SELECT payload FROM timeball.job") == [{"payload": {"number": 99}}]


async def test_enqueues_are_neither_doubled_nor_refused_for_another_one_that_is(tb: Timeball, rows: Rows) -> None:
    """They come at once, so each kind goes in one batch."""

    @tb.handler
    def index(number: int) -> None: ...

    @tb.handler
    def after_it(number: int) -> None: ...

    @tb.handler
    def third(number: int) -> None: ...

    changes: dict[str, Any] = {"key": "k", "if_exists": "replace", "delay": "1h"}
    await index.options(**changes).aenqueue(1)
    await after_it.options(**changes).aenqueue(2)
    before = len(rows("SELECT FROM timeball.job"))
    calls = [
        *(index.options(tags=[str(n)]).aenqueue(n) for n in range(20)),
        *(index.options(key=f"own-{n}").aenqueue(n) for n in range(20)),
        *(third.options(**changes).aenqueue(n) for n in range(2)),
        *(index.options(**changes | {"key": f"changes-{n}"}).aenqueue(n) for n in range(20)),
    ]

    answers = await asyncio.gather(*calls, return_exceptions=True)

    runs = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [type(answer) for answer in answers[40:42]] == [Conflict, Conflict]
    assert (len(runs), len({run.id for run in runs})) == (60, 60)
    assert all(run.is_new for run in runs)
    assert len(rows("SELECT FROM timeball.job")) == before + 60


def test_a_key_that_is_held_gives_back_the_run_that_has_ended(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def remind(user: int) -> None: ...

    first = remind.options(key="r", unique_for="1h").enqueue(1)
    assert first.cancel()

    again = remind.options(key="r", unique_for="1h", if_exists="replace").enqueue(2)

    assert (again.id, again.job_id, again.is_new) == (first.id, first.job_id, False)
    assert again.state() == "cancelled"


@pytest.mark.parametrize("is_within", [True, False])
async def test_a_bulk_enqueue_takes_no_key(tb: Timeball, is_within: bool) -> None:
    @tb.handler
    def remind(user: int) -> None: ...

    many = remind.options(key="r", **({"connection": object()} if is_within else {}))

    with pytest.raises(InvalidInput, match="key is 'r', and enqueue_many gives its options to every call"):
        many.enqueue_many([remind.call(1)])
    with pytest.raises(InvalidInput, match="key is 'r', and enqueue_many gives its options to every call"):
        await many.aenqueue_many([remind.call(1)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"if_exists": "replace"}, "if_exists is replace, and there is no unique_key"),
        ({"unique_for": "10m"}, "unique_for_seconds is 600, and there is no unique_key"),
        ({"key": "k", "if_exists": "perhaps"}, 'if_exists is "perhaps", expected keep, replace or extend'),
        ({"key": "k", "unique_for": "0s"}, "unique_for_seconds is 0, expected 1 to"),
        ({"key": "k", "unique_for": "1ms"}, 'unique_for is "1ms", expected a whole number of seconds'),
    ],
)
def test_what_is_said_of_a_key_is_checked(tb: Timeball, options: Any, words: str) -> None:
    @tb.handler
    def remind(user: int) -> None: ...

    with pytest.raises(InvalidInput, match=words):
        remind.options(**options).enqueue(1)


async def test_of_concurrent_enqueues_with_one_key_one_is_new(tb: Timeball) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    runs = await asyncio.gather(*(send.options(key="only").aenqueue(n) for n in range(50)))

    assert sum(run.is_new for run in runs) == 1
    assert len({run.id for run in runs}) == 1
    assert len({run.job_id for run in runs}) == 1


def test_the_limit_of_a_handler_is_shared_by_all_its_jobs(tb: Timeball, rows: Rows) -> None:
    @tb.handler(name="crawl", max_running=2)
    def crawl(site: str) -> None: ...

    for number in range(5):
        crawl.enqueue(f"site {number}")
    crawl.options(limit_key="site 9").enqueue("site 9")
    crawl.options(max_running=None).enqueue("unlimited")

    assert rows("SELECT key, max_running FROM timeball.running_limit ORDER BY key") == [
        {"key": "crawl", "max_running": 2},
        {"key": "site 9", "max_running": 2},
    ]
    assert rows("SELECT limit_key, count(*) AS n FROM timeball.ready GROUP BY 1 ORDER BY 1") == [
        {"limit_key": "crawl", "n": 2},
        {"limit_key": "site 9", "n": 1},
        {"limit_key": None, "n": 1},
    ]


# many


def test_many_calls_are_written_in_one_transaction(tb: Timeball, node: Node, rows: Rows) -> None:
    @tb.handler(queue="bulk", priority=70)
    def square(n: int) -> int:
        return n * n

    runs = square.enqueue_many(square.call(n) for n in range(1_000))

    assert len({run.id for run in runs}) == 1_000
    assert rows("SELECT DISTINCT queue, priority FROM timeball.ready") == [{"queue": "bulk", "priority": 70}]
    assert len(rows("SELECT DISTINCT xmin::text FROM timeball.job")) == 1
    with node():
        assert runs[30].result(timeout=patience(20)) == 900


async def test_many_delayed_calls_wait_for_their_time(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def square(n: int) -> int:
        return n * n

    runs = await square.options(delay="1h").aenqueue_many([square.call(1), square.call(2)])

    assert [await run.astate() for run in runs] == ["scheduled", "scheduled"]
    assert len(rows("SELECT FROM timeball.due WHERE run_at > now() + interval '59 minutes'")) == 2


def test_many_calls_of_a_limited_handler_keep_to_the_limit(tb: Timeball, rows: Rows) -> None:
    @tb.handler(max_running=3)
    def crawl(n: int) -> None: ...

    runs = crawl.enqueue_many(crawl.call(n) for n in range(10))

    assert len(runs) == 10
    assert len(rows("SELECT FROM timeball.ready")) == 3
    assert len(rows("SELECT FROM timeball.blocked")) == 7


def test_a_refused_call_of_many_writes_none(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send(value: Any) -> None: ...

    @tb.handler
    def other(value: Any) -> None: ...

    with pytest.raises(PayloadError, match="value is not JSON"):
        send.enqueue_many(send.call(value) for value in (1, 2, object()))
    with pytest.raises(InvalidInput, match=r"enqueue_many of .*send was given a call of .*other"):
        send.enqueue_many([send.call(1), other.call(2)])
    with pytest.raises(InvalidInput, match=r"given a dict, expected calls: .*send\.call\(\.\.\.\)"):
        send.enqueue_many([{"value": 1}])  # type: ignore[list-item]
    assert send.enqueue_many([]) == []

    assert rows("SELECT FROM timeball.job") == []


# together


async def test_concurrent_enqueues_share_commits(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    await send.aenqueue(-1)
    await asyncio.gather(*(send.aenqueue(n) for n in range(300)))

    (counts,) = rows("SELECT count(*) AS jobs, count(DISTINCT xmin::text) AS commits FROM timeball.job")
    assert counts["jobs"] == 301
    assert counts["commits"] <= 10


def test_threads_share_commits_too(tb: Timeball, rows: Rows) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    send.enqueue(-1)
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        for n in range(10):
            send.enqueue(10 * number + n)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (counts,) = rows("SELECT count(*) AS jobs, count(DISTINCT xmin::text) AS commits FROM timeball.job")
    assert counts["jobs"] == 161
    assert counts["commits"] < 160


async def test_a_refused_enqueue_does_not_fail_concurrent_ones(tb: Timeball, rows: Rows) -> None:
    await tb.aenqueue("first")
    answers = await asyncio.gather(
        *(tb.aenqueue("elsewhere", {"n": n}, priority=101 if n == 7 else 50) for n in range(20)),
        return_exceptions=True,
    )

    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(error) for error in refused] == [InvalidInput]
    assert len(rows("SELECT FROM timeball.job WHERE handler = 'elsewhere'")) == 19


# by name


def test_a_handler_of_another_program_is_enqueued_by_its_name(tb: Timeball, rows: Rows) -> None:
    tb.enqueue("billing:charge", {"order_id": 42}, queue="billing", key="c-42")
    tb.enqueue("billing:tick")
    tb.enqueue("billing:list", [1, 2])

    assert rows("SELECT handler, queue, unique_key, payload FROM timeball.job ORDER BY handler") == [
        {"handler": "billing:charge", "queue": "billing", "unique_key": "c-42", "payload": {"order_id": 42}},
        {"handler": "billing:list", "queue": "default", "unique_key": None, "payload": [1, 2]},
        {"handler": "billing:tick", "queue": "default", "unique_key": None, "payload": {}},
    ]


def test_a_declared_handler_enqueued_by_name_keeps_its_options_and_checks_its_arguments(
    tb: Timeball, rows: Rows
) -> None:
    @tb.handler(name="send", queue="mail")
    def send(to: str, copy: bool = False) -> None: ...

    tb.enqueue("send", {"to": "a@b.co"})
    tb.enqueue(send, {"to": "c@d.co"}, priority=90)

    with pytest.raises(InvalidInput, match="to is missing"):
        tb.enqueue(send, {"copy": True})
    with pytest.raises(InvalidInput, match="the payload for send is a list, expected its arguments by name"):
        tb.enqueue("send", ["a@b.co"])
    assert rows("SELECT queue, priority FROM timeball.job ORDER BY priority") == [
        {"queue": "mail", "priority": 50},
        {"queue": "mail", "priority": 90},
    ]


async def test_jobs_are_triggered_paused_and_resumed_by_name(tb: Timeball, node: Node, rows: Rows) -> None:
    @tb.every("1h", name="hourly", arguments={"what": "report"})
    def say(what: str) -> str:
        return what

    await tb.async_sync_schedules()
    with node():
        assert await (await tb.jobs.atrigger("hourly")).aresult(timeout=patience(20)) == "report"
        assert await (await tb.jobs.atrigger("hourly", {"what": "other"})).aresult(timeout=patience(20)) == "other"
    run = await tb.jobs.atrigger("hourly")
    assert await tb.jobs.atrigger(run.job_id, expires="10m")
    assert tb.jobs.trigger("hourly", expires=datetime(2098, 1, 1, tzinfo=UTC))
    expiries = rows(
        "SELECT expires_at - run_at AS span, expires_at FROM timeball.ready ORDER BY expires_at NULLS FIRST"
    )
    assert [row["expires_at"] is None for row in expiries] == [True, False, False]
    assert (expiries[1]["span"], expiries[2]["expires_at"]) == (timedelta(minutes=10), datetime(2098, 1, 1, tzinfo=UTC))

    await tb.jobs.apause("hourly", reason="holidays")
    assert rows("SELECT pause_reason FROM timeball.job") == [{"pause_reason": "holidays"}]
    await tb.jobs.aresume("hourly")
    assert rows("SELECT paused_at FROM timeball.job") == [{"paused_at": None}]
    with pytest.raises(NotFound, match="there is no job daily"):
        await tb.jobs.atrigger("daily")
    with pytest.raises(NotFound, match="there is no job job_0"):
        await tb.jobs.apause("job_00000000000000000000000000")


# opening and closing


def test_an_unavailable_database_raises_and_is_tried_again(fresh_database: Any) -> None:
    with Timeball("postgresql://timeball@/nothing?host=/nowhere") as tb:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
                tb.enqueue("elsewhere")


async def test_after_closing_the_next_use_opens_again(tb: Timeball, rows: Rows) -> None:
    async with tb:
        await tb.aenqueue("first")
    await tb.aenqueue("second")
    await tb.aclose()
    await tb.aclose()
    await asyncio.to_thread(tb.enqueue, "third")

    assert len(rows("SELECT FROM timeball.job")) == 3
