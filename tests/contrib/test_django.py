"""Django's tasks on Timeball: the project of the guide, with a real worker on a real database."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from tests.conftest import FreshDatabase
from tests.contrib.conftest import environment_of
from tests.sdk.conftest import ON_ONE_SERVER, SOURCES
from tests.support.pace import patience
from timeball.contrib.django.options import check_backend_options
from timeball.domain.values.ids import parse_id
from timeball.errors import InvalidInput, ResultTimeout
from timeball.handlers.lint import lint_handler
from timeball.handlers.registry import Registry
from timeball.sdk.app import Timeball

pytestmark = ON_ONE_SERVER

TAKES_OPTIONS = pytest.mark.skipif(
    (6, 0) <= django.VERSION < (6, 1), reason="in this version Django's own decorator takes no options of a backend"
)

Worker = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def tasks(shop: Any) -> Any:
    return importlib.import_module("bookshop.tasks")


def ended(result: Any, seconds: float = 60) -> Any:
    """The result, once its task has ended."""
    began_at = time.monotonic()
    while not result.is_finished:
        assert time.monotonic() < began_at + patience(seconds), result
        time.sleep(0.02)
        result.refresh()
    return result


def stored() -> list[dict[str, Any]]:
    """The stored executions; those of one millisecond in any order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT handler, queue, priority, state, scheduled_for > now() AS is_later FROM timeball.execution ORDER BY id"
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


# running


def test_a_task_is_run_by_a_worker_and_its_result_read_back(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.send_receipt.enqueue(42, to="a@b.co"))

    assert result.return_value == "receipt 42 -> a@b.co"
    again = tasks.send_receipt.get_result(result.id)
    assert again == result
    assert (again.args, again.kwargs) == ([42], {"to": "a@b.co"})
    assert again.attempts == len(again.worker_ids) == 1
    assert again.worker_ids[0].startswith("wrk_")
    assert again.enqueued_at <= again.started_at == again.last_attempted_at <= again.finished_at
    assert (again.errors, again.task.priority, again.task.queue_name) == ([], 10, "default")


def test_a_task_has_the_code_around_it_and_before_its_enqueue(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.hooks_around.enqueue(number=3))

    assert result.return_value == [["enter", "bookshop.tasks.hooks_around", "acme {'number': 3}"]]
    assert tasks.hooked[-1] == ["leave", "succeeded"]


def test_a_task_is_provided_with_what_it_depends_on(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.depends.enqueue(3))
        of_coroutine = ended(tasks.depends_in_coroutine.enqueue(number=4))

    assert (result.return_value, result.args, result.kwargs) == (["session", 1, 3], [3], {})
    assert of_coroutine.return_value == ["session", 4]
    assert tasks.hooked.count(["open"]) == tasks.hooked.count(["close"]) == 2


async def test_coroutines_enqueue_and_are_tasks(tasks: Any, worker: Worker) -> None:
    with worker():
        result = await tasks.count_orders.aenqueue()
        while not result.is_finished:
            await result.arefresh()

    assert result.return_value == 0


def test_arguments_of_every_kind_arrive_as_they_were_given(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.positions.enqueue(1, (2, 3), name="x", deep={"a": [None, 1.5]}))

    assert result.return_value == [[1, [2, 3]], {"name": "x", "deep": {"a": [None, 1.5]}}]


def test_a_failed_task_is_retried_and_its_context_shows_the_attempts(tasks: Any, worker: Worker) -> None:
    quick = importlib.import_module("dataclasses").replace(tasks.fail_at_first, backoff="1ms")
    with worker():
        result = ended(quick.enqueue(times=2))

    attempt, result_id, errors, workers = result.return_value
    assert (attempt, result_id, errors) == (3, result.id, 2)
    assert workers == result.worker_ids
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
    assert "LookupError: try 1" in result.errors[0].traceback
    assert "timeball/" not in result.errors[0].traceback


def test_a_task_that_fails_for_good_shows_its_error(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.fail_at_once.enqueue())

    assert result.status == "FAILED"
    assert [error.exception_class for error in result.errors] == [LookupError]
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_result_that_is_not_json_fails_without_a_retry(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.returns_no_json.enqueue())

    assert (result.status, result.attempts) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, TypeError)


@pytest.fixture
def steps(shop: Any) -> Iterator[list[tuple[str, str, int]]]:
    """What the signals of Django tell: the step, the status, the attempts."""
    from timeball.contrib.django.compat import task_enqueued, task_finished, task_started

    steps: list[tuple[str, str, int]] = []
    receivers = [
        lambda task_result, step=step, **_: steps.append((step, str(task_result.status), task_result.attempts))
        for step in ("enqueued", "started", "finished")
    ]
    signals = (task_enqueued, task_started, task_finished)
    for signal, receiver in zip(signals, receivers, strict=True):
        signal.connect(receiver)
    yield steps
    for signal, receiver in zip(signals, receivers, strict=True):
        signal.disconnect(receiver)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(steps: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return [step for step in steps if step[0] == "finished"]


def test_django_signals_are_sent_at_every_step(tasks: Any, worker: Worker, steps: list[tuple[str, str, int]]) -> None:
    quick = importlib.import_module("dataclasses").replace(tasks.fail_at_first, backoff="1ms", retries=1)

    with worker():
        ended(quick.enqueue(times=1))
        ended(quick.enqueue(times=2))
        wait_for(lambda: len(finished(steps)) == 2)

    # A worker may start before the enqueue returns: only the steps of each side have an order.
    tries = [("started", "RUNNING", 1), ("started", "RUNNING", 2)]
    assert [step for step in steps if step[0] == "enqueued"] == [("enqueued", "READY", 0)] * 2
    assert [step for step in steps if step[0] != "enqueued"] == [
        *tries,
        ("finished", "SUCCESSFUL", 2),
        *tries,
        ("finished", "FAILED", 2),
    ]


def test_the_end_of_a_task_is_told_once_whatever_ended_it(
    tasks: Any, shop: Any, worker: Worker, steps: list[tuple[str, str, int]]
) -> None:
    """Cancelled while it waited, expired, timed out, hopeless, not callable, failed: of most of them no worker has seen the end."""
    variant = importlib.import_module("dataclasses").replace
    cancelled = tasks.positions.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    shop.get_run(cancelled.id).cancel("not wanted")
    expired = tasks.positions.using(expires="1s").enqueue()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE timeball.ready SET expires_at = now() WHERE id = %s", [parse_id("exe", expired.id)])
    results = [
        cancelled,
        expired,
        variant(tasks.wait_for_a_while, timeout="50ms", retries=0).enqueue(),
        tasks.never_again.enqueue(),
        tasks.only_the_network.enqueue(),
        tasks.fail_at_once.enqueue(),
        variant(tasks.ship, retries=0).enqueue("no parcel", "no uuid"),
    ]

    with worker():
        for result in results:
            ended(result)
        wait_for(lambda: len(finished(steps)) >= len(results))
        tasks.positions.enqueue()
        wait_for(lambda: len(finished(steps)) > len(results))

    assert sorted(status for _, status, _ in finished(steps)) == ["FAILED"] * len(results) + ["SUCCESSFUL"]


def test_without_receivers_nothing_follows_a_task(tasks: Any, worker: Worker) -> None:
    with worker():
        ended(tasks.fail_at_once.enqueue())

    handlers = {row["handler"] for row in stored()}
    assert "bookshop.tasks.fail_at_once" in handlers
    assert "django.end_of_task" not in handlers


@pytest.mark.parametrize("name", ["session_of_thread", "session_of_coroutine"])
def test_connections_are_closed_after_a_task(tasks: Any, worker: Worker, name: str) -> None:
    with worker():
        session = ended(getattr(tasks, name).enqueue()).return_value

        # The server takes a moment to notice that the client has closed the connection.
        deadline = time.monotonic() + patience(30)
        while is_alive(session):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def is_alive(session: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", [session])
        is_open: bool = cursor.fetchone()[0]
        return is_open


# enqueuing


def test_queue_priority_and_time_are_kept(tasks: Any) -> None:
    later = timezone.now() + timedelta(hours=1)

    tasks.positions.using(priority=-100).enqueue()
    tasks.positions.using(priority=100, run_after=timezone.now() - timedelta(hours=1)).enqueue()
    result = tasks.positions.using(priority=7, run_after=later).enqueue()

    assert {row["priority"]: (row["state"], row["is_later"]) for row in stored()} == {
        0: ("queued", False),
        100: ("queued", False),
        53: ("scheduled", True),
    }
    again = tasks.positions.get_result(result.id)
    assert (again.status, again.task.priority) == ("READY", 6)
    assert again.task.run_after == later


def test_a_task_may_have_options_for_every_call(tasks: Any, shop: Any, worker: Worker) -> None:
    results = [tasks.stock.enqueue(1), tasks.stock.enqueue(2), tasks.stock.using(key="other", retries=1).enqueue(3)]

    assert results[0].id == results[1].id
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT unique_key, limit_key, max_running, max_retries, start_within_seconds, meta->>'of', queue, priority "
            "FROM timeball.job ORDER BY unique_key"
        )
        assert cursor.fetchall() == [
            ("other", "shelf", 1, 1, 3600, "stock", "default", 60),
            ("stock", "shelf", 1, 4, 3600, "stock", "default", 60),
        ]
    handler = shop.registry.get("bookshop.tasks.stock")
    assert (handler.options.retry_on, handler.options.no_retry[0]) == ((OSError,), TimeoutError)
    with worker():
        assert ended(results[0]).return_value == 1


def test_a_call_of_a_task_may_have_options_of_its_own(tasks: Any) -> None:
    once = tasks.positions.using(
        meta={"tenant": "acme"}, key="r-42", limit_key="shop", max_running=2, tags=["slow"], expires="10m", retries=0
    )

    results = [once.enqueue(1), once.enqueue(2)]

    assert results[0].id == results[1].id
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT unique_key, limit_key, max_running, tags, max_retries, start_within_seconds, meta->>'tenant' FROM timeball.job"
        )
        assert cursor.fetchall() == [("r-42", "shop", 2, ["slow"], 0, 600, "acme")]


def test_handlers_follow_a_task(tasks: Any, worker: Worker) -> None:
    followed = tasks.positions.using(on_success=tasks.note_follower.call(tasks.tb.result))

    with worker():
        followed.enqueue(7)
        wait_for(lambda: tasks.followers)

    assert tasks.followers == [[[7], {}]]


def test_the_parcel_of_the_guide_is_sent_once(tasks: Any, worker: Worker) -> None:
    parcels = importlib.import_module("bookshop.parcels")
    parcel = parcels.Parcel(UUID(int=7), Decimal("1.50"), date(2026, 3, 2))

    results = [parcels.send_parcel.get_result(parcels.checkout(parcel)) for _ in range(2)]

    assert results[0].id == results[1].id
    with worker():
        assert ended(results[0]).return_value == f"{UUID(int=7)} leaves on Monday"


def test_a_second_enqueue_with_a_key_sends_no_signal(tasks: Any) -> None:
    from timeball.contrib.django.compat import task_enqueued

    enqueued: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.id)

    task_enqueued.connect(note)
    result = tasks.positions.using(key="r-42").enqueue()
    tasks.positions.using(key="r-42").enqueue()

    assert enqueued == [result.id]


def test_arguments_may_be_more_than_json(tasks: Any, worker: Worker) -> None:
    parcel = tasks.Parcel(Decimal("1.50"), date(2026, 3, 1))
    number = UUID(int=7)
    at = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

    with worker():
        result = ended(tasks.ship.enqueue(parcel, number, at=at))

    assert result.return_value == {"id": str(number), "on": 2026, "weight": "3.00", "at": "2026-03-02T09:30:00+00:00"}
    assert result.args == [{"weight": "1.50", "sent_on": "2026-03-01"}, str(number)]


def test_what_a_task_declares_holds_for_its_schedules_too(tasks: Any, shop: Any) -> None:
    handler = shop.registry.get("bookshop.tasks.process_of_task")

    assert (handler.style, handler.options.fields["timeout_ms"]) == ("process", 60_000)
    assert (handler.options.fields["queue"], handler.options.fields["priority"]) == ("default", 50)
    assert shop.registry.get("bookshop.tasks.fail_at_once").options.fields["max_retries"] == 0


def test_a_task_may_expire(tasks: Any) -> None:
    importlib.import_module("dataclasses").replace(tasks.fail_at_first, expires="10m").enqueue(times=1)

    with connection.cursor() as cursor:
        cursor.execute("SELECT expires_at - run_at FROM timeball.execution")
        assert cursor.fetchall() == [(timedelta(minutes=10),)]


def test_an_enqueue_is_part_of_the_transaction_around_it(tasks: Any, worker: Worker) -> None:
    from bookshop.checkout import place_order
    from bookshop.models import Order

    with transaction.atomic():
        place_order("nobody@b.co")
        transaction.set_rollback(True)
    assert (Order.objects.count(), stored()) == (0, [])

    result = tasks.send_receipt.get_result(place_order("a@b.co"))
    assert Order.objects.count() == 1
    with worker():
        assert ended(result).return_value == f"receipt {Order.objects.get().pk} -> a@b.co"


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda tasks: tasks.send_invoice.enqueue(1),
        lambda tasks: tasks.send_invoice.options(delay="1h").enqueue(1),
        lambda tasks: tasks.send_invoice.enqueue_many(tasks.send_invoice.call(number) for number in range(3)),
        lambda tasks: async_to_sync(tasks.send_invoice.aenqueue)(1),
        lambda tasks: tasks.send_invoice.schedule("0 9 * * *", name="invoice", arguments={"order_id": 1}),
        lambda tasks: async_to_sync(tasks.send_invoice.aschedule)(
            "0 9 * * *", name="invoice", arguments={"order_id": 1}
        ),
        lambda tasks: tasks.tb.enqueue("test.echo", {"order_id": 1}),
        lambda tasks: tasks.tb.group([tasks.send_invoice.call(number) for number in range(3)]).enqueue(),
        lambda tasks: async_to_sync(tasks.tb.group([tasks.send_invoice.call(1)]).aenqueue)(),
        lambda tasks: tasks.tb.chain(tasks.send_invoice.call(1), tasks.send_invoice.call(2)).enqueue(),
    ],
    ids=[
        *("enqueue", "delayed", "many", "coroutine", "schedule", "schedule-coroutine", "by-name"),
        *("group", "group-coroutine", "chain"),
    ],
)
def test_a_handler_joins_the_transaction_around_it_as_a_task_does(tasks: Any, enqueue: Callable[[Any], Any]) -> None:
    with transaction.atomic():
        enqueue(tasks)
        transaction.set_rollback(True)
    assert stored() == []

    with transaction.atomic(using="archive"):  # a database without Timeball's schema
        enqueue(tasks)
        transaction.set_rollback(True, using="archive")
    outside = len(stored())

    with transaction.atomic():
        enqueue(tasks)
        inside = len(stored())
    assert inside == len(stored()) >= outside >= 1


def test_the_run_of_a_handler_in_a_transaction_is_waited_for_until_the_commit(tasks: Any, worker: Worker) -> None:
    with worker():
        with transaction.atomic():
            run = tasks.send_invoice.enqueue(42)
            with pytest.raises(ResultTimeout, match="committed"):
                run.result(timeout="50ms")

        assert run.result(timeout=patience(60)) == 42


def test_any_handler_can_be_enqueued_in_a_django_transaction(shop: Any) -> None:
    for takes_it_back in (True, False):
        with transaction.atomic():
            shop.enqueue("test.echo", {"hello": "world"}, connection=connection)
            transaction.set_rollback(takes_it_back)

    assert [row["handler"] for row in stored()] == ["test.echo"]


@pytest.mark.parametrize("has_zones", [True, False], ids=["USE_TZ", "local-times"])
def test_any_handler_can_be_scheduled_in_a_django_transaction(shop: Any, has_zones: bool) -> None:
    with override_settings(USE_TZ=has_zones, TIME_ZONE="America/New_York"):
        connection.close()
        for takes_it_back in (True, False):
            with transaction.atomic():
                job = shop.schedule("test.echo", "0 7 * * *", name="echo", connection=connection)
                again = shop.schedule("test.echo", "0 8 * * *", name="echo", connection=connection)
                transaction.set_rollback(takes_it_back)

    assert (job.action, again.action, again.version) == ("create", "change", 2)
    assert (job.next_run_at.hour, again.next_run_at.hour) == (7, 8)
    assert [(row["handler"], row["state"]) for row in stored()] == [("test.echo", "scheduled")]


def test_a_task_in_a_transaction_is_not_visible_before_the_commit(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import TaskResultDoesNotExist

    with transaction.atomic():
        result = tasks.positions.enqueue()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    result.refresh()
    assert result.status == "READY"


def test_workers_are_woken_after_the_commit(tasks: Any, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups: list[Any] = []
    monkeypatch.setattr("timeball.store.db.notifier.Notifier.tell", lambda _self, wakeup: wakeups.append(wakeup))

    with transaction.atomic():
        tasks.positions.using(priority=20).enqueue()
        tasks.positions.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        tasks.send_invoice.enqueue_many([tasks.send_invoice.call(1), tasks.send_invoice.call(2)])
        tasks.send_invoice.options(delay="1h").enqueue(1)
        assert wakeups == []

    assert [sorted(wakeup.lanes) for wakeup in wakeups] == [[("default", 60)], [], [("mail", 50)], []]
    assert [len(wakeup.shards) for wakeup in wakeups] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("write", "shards", "looks_everywhere"),
    [
        (lambda tasks: tasks.tb.group([tasks.send_invoice.call(1)]).enqueue(), 0, True),
        (lambda tasks: async_to_sync(tasks.tb.group([tasks.send_invoice.call(1)]).aenqueue)(), 0, True),
        (lambda tasks: tasks.tb.chain(tasks.send_invoice.call(1), tasks.send_invoice.call(2)).enqueue(), 0, True),
        (lambda tasks: schedule_invoice(tasks), 1, False),
        (lambda tasks: async_to_sync(tasks.send_invoice.aschedule)(every="1m", arguments={"order_id": 1}), 1, False),
        (
            lambda tasks: tasks.send_invoice.schedule_many(
                [{"every": "1m", "name": "a", "arguments": {"order_id": 1}}]
            ),
            0,
            True,
        ),
        (lambda tasks: [schedule_invoice(tasks), tasks.tb.jobs.update("invoice", every="2m")], 2, False),
        (
            lambda tasks: [schedule_invoice(tasks), tasks.tb.jobs.pause("invoice"), tasks.tb.jobs.resume("invoice")],
            2,
            False,
        ),
        (lambda tasks: [schedule_invoice(tasks), tasks.tb.jobs.pause_all("a"), tasks.tb.jobs.resume_all("a")], 1, True),
    ],
    ids=[
        "group",
        "group-coroutine",
        "chain",
        "schedule",
        "schedule-coroutine",
        "many",
        "update",
        "resume",
        "resume-all",
    ],
)
def test_nodes_are_woken_after_the_commit_of_whatever_they_should_do(
    tasks: Any,
    shop: Any,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Any], Any],
    shards: int,
    looks_everywhere: bool,
) -> None:
    wakeups: list[Any] = []
    monkeypatch.setattr("timeball.store.db.notifier.Notifier.tell", lambda _self, wakeup: wakeups.append(wakeup))

    for takes_it_back in (True, False):
        with transaction.atomic():
            write(tasks)
            transaction.set_rollback(takes_it_back)
            assert wakeups == []
        assert bool(wakeups) is not takes_it_back

    assert sum(len(wakeup.shards) for wakeup in wakeups) == shards
    assert any(wakeup.look_everywhere for wakeup in wakeups) == looks_everywhere


def schedule_invoice(tasks: Any) -> Any:
    return tasks.send_invoice.schedule(every="1m", name="invoice", owner="a", arguments={"order_id": 1})


@pytest.mark.parametrize(
    ("enqueue", "error"),
    [
        (lambda tasks: tasks.send_receipt.enqueue(42), "do not fit send_receipt.*: to is missing"),
        (lambda tasks: tasks.send_receipt.enqueue(42, to="a", cc="b"), "cc is unknown, expected"),
        (
            lambda tasks: tasks.send_receipt.enqueue(tasks.Order(to="a"), to="a"),
            "is not JSON.* expected JSON, or what becomes",
        ),
        (lambda tasks: tasks.send_receipt.using(isolate=True), "has no option 'isolate'"),
        (lambda tasks: tasks.send_receipt.using(delay="1h"), "has no option 'delay'"),
        (lambda tasks: tasks.send_receipt.using(backoff=lambda failures, error: "1s"), "backoff is a function"),
        (lambda tasks: tasks.send_receipt.using(timeout="soon").enqueue(1, to="a"), "timeout"),
        (lambda tasks: tasks.send_receipt.using(queue_name="moon"), "Queue 'moon' is not valid"),
        (lambda tasks: tasks.send_receipt.using(priority=101), "priority must be"),
    ],
)
def test_a_wrong_task_is_refused_at_its_definition(tasks: Any, enqueue: Any, error: str) -> None:
    with pytest.raises(Exception, match=error):
        enqueue(tasks)


@pytest.mark.parametrize(
    ("give", "hint"),
    [
        (lambda tasks: tasks.send_receipt.using(countdown=60), "countdown is here: using(run_after="),
        (lambda tasks: tasks.send_receipt.using(eta=None), "eta is here: using(run_after="),
        (lambda tasks: tasks.send_receipt.using(headers={}), "headers of other job queues is here: using(meta={...})"),
        (lambda tasks: tasks.send_receipt.using(queue="mail"), "queue is here: queue_name"),
        (lambda tasks: tasks.send_receipt.using(no_retry=LookupError), "it belongs to the function, which the worker"),
        (lambda tasks: tasks.send_receipt.using(takes_context=True), "it belongs to the task: @task(takes_context="),
        pytest.param(
            lambda tasks: tasks.task(autoretry_for=OSError)(tasks.bill.func),
            "autoretry_for of other job queues is here: retry_on",
            marks=TAKES_OPTIONS,
        ),
        pytest.param(lambda tasks: tasks.task(retrys=3)(tasks.bill.func), "did you mean retries?", marks=TAKES_OPTIONS),
        (lambda tasks: with_own_task(max_retries=3), "max_retries of other job queues is here: retries"),
        (lambda tasks: with_own_task(run_after=None), "run_after is here: using(run_after="),
        (lambda tasks: check_backend_options({"time_limit": 3}), "time_limit of other job queues is here: timeout"),
        (lambda tasks: check_backend_options({"key": "x"}), "it belongs to a task or a call: @task(key="),
        (
            lambda tasks: tasks.send_receipt.enqueue(42, to="a", countdown=60),
            "countdown of other job queues is here: using(",
        ),
        (lambda tasks: tasks.send_receipt.enqueue(42, to="a", key="x"), "key is an option and not an argument: using("),
    ],
)
def test_an_option_that_is_not_known_here_is_told_what_it_is_called(tasks: Any, give: Any, hint: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        give(tasks)

    assert refusal.value.hint.startswith(hint)


def with_own_task(**options: Any) -> Any:
    from timeball.contrib.django import task

    return task(**options)


def test_a_call_of_another_library_is_told_what_it_is_called_for_a_task(tasks: Any) -> None:
    with pytest.raises(AttributeError, match=r"delay of other job queues is here: enqueue\(\.\.\.\)"):
        tasks.send_receipt.delay(42)
    with pytest.raises(AttributeError, match=r"apply_async of other job queues is here: using\(\.\.\.\)\.enqueue"):
        tasks.send_receipt.apply_async((42,))


def test_a_task_with_options_works_with_a_backend_of_django_too(tasks: Any) -> None:
    """As in a test whose settings name it: it makes nothing of the options."""
    from timeball.contrib.django.compat import AnyTask

    backends = f"{AnyTask.__module__.rpartition('.')[0]}.backends"
    with override_settings(TASKS={"default": {"BACKEND": f"{backends}.immediate.ImmediateBackend"}}):
        result = tasks.stock.using(key="other").enqueue(7)

    assert (str(result.status), result.return_value) == ("SUCCESSFUL", 7)


def test_an_unknown_result_raises(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import TaskResultDoesNotExist

    foreign = shop.enqueue("test.echo", {"hello": "world"})

    for result_id, why in [
        ("rubbish", "is not an id"),
        ("exe_" + "0" * 26, "there is no"),
        (foreign.id, "not a task of this"),
    ]:
        with pytest.raises(TaskResultDoesNotExist, match=why):
            tasks.send_receipt.get_result(result_id)


# the program


def test_check_names_a_task_whose_arguments_json_cannot_hold(shop: Any) -> None:
    concerns = {handler.name: list(lint_handler(handler)) for handler in shop.registry}

    (concern,) = concerns["bookshop.tasks.bill"]
    assert concern.startswith("its parameter order takes a Order, which JSON cannot hold: ")
    assert concerns["bookshop.tasks.ship"] == []


def test_the_registry_has_all_tasks_and_handlers(shop: Any) -> None:
    names = set(shop.registry.names())

    assert {
        "bookshop.tasks.send_receipt",
        "bookshop.tasks.count_orders",
        "bookshop.nightly.tasks:clear_sessions",
    } <= names
    assert list(shop.schedules) == ["bookshop.nightly.tasks:clear_sessions"]


def test_what_the_registry_of_every_timeball_does_reaches_tasks_too(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that is added to all handlers of a program is added in one place."""
    build = Timeball.registry.fget
    assert build is not None
    noted: list[str] = []

    def noting(program: Timeball) -> Registry:
        registry: Registry = build(program)
        noted.extend(registry.names())
        return registry

    monkeypatch.setattr(Timeball, "registry", property(noting))

    assert noted == list(shop.registry.names())
    assert {"bookshop.tasks.send_receipt", "bookshop.nightly.tasks:clear_sessions"} <= set(noted)


def test_the_worker_command_of_the_guide_runs_its_tasks(
    tasks: Any, project_folder: Path, fresh_database: FreshDatabase
) -> None:
    """No variable of Timeball's names the database: the worker finds it through Django."""
    variables = os.environ | environment_of(fresh_database) | {"PYTHONPATH": str(SOURCES), "TIMEBALL_MIGRATE": "false"}
    result = tasks.send_receipt.enqueue(42, to="a@b.co")
    isolated = [tasks.process_of_task.enqueue() for _ in range(2)]

    worker = subprocess.Popen(
        [sys.executable, "-m", "timeball", "worker", "timeball.contrib.django:tb"], cwd=project_folder, env=variables
    )
    try:
        assert ended(result, seconds=120).return_value == "receipt 42 -> a@b.co"
        children = {ended(one, seconds=120).return_value for one in isolated}
        assert len(children) == 2, "each run has a child of its own"
        assert not children & {None, worker.pid}
    finally:
        worker.terminate()

    assert worker.wait(60) == 0
