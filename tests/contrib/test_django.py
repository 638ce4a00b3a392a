"""Django's tasks on Timeball: the project of the guide, with a real worker on a real database."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from tests.conftest import FreshDatabase
from tests.contrib.conftest import environment_of
from tests.sdk.conftest import ON_ONE_SERVER, SOURCES
from tests.support.pace import patience
from timeball.handlers.registry import Registry
from timeball.sdk.app import Timeball

pytestmark = ON_ONE_SERVER

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


def test_django_signals_are_sent_at_every_step(tasks: Any, worker: Worker) -> None:
    from timeball.contrib.django.compat import task_enqueued, task_finished, task_started

    steps: list[tuple[str, str, int]] = []
    receivers = [
        lambda task_result, step=step, **_: steps.append((step, str(task_result.status), task_result.attempts))
        for step in ("enqueued", "started", "finished")
    ]
    signals = (task_enqueued, task_started, task_finished)
    quick = importlib.import_module("dataclasses").replace(tasks.fail_at_first, backoff="1ms", retries=1)
    for signal, receiver in zip(signals, receivers, strict=True):
        signal.connect(receiver)

    try:
        with worker():
            ended(quick.enqueue(times=1))
            ended(quick.enqueue(times=2))
    finally:
        for signal, receiver in zip(signals, receivers, strict=True):
            signal.disconnect(receiver)

    # A worker may start before the enqueue returns: only the steps of each side have an order.
    tries = [("started", "RUNNING", 1), ("started", "RUNNING", 2)]
    assert [step for step in steps if step[0] == "enqueued"] == [("enqueued", "READY", 0)] * 2
    assert [step for step in steps if step[0] != "enqueued"] == [
        *tries,
        ("finished", "SUCCESSFUL", 2),
        *tries,
        ("finished", "FAILED", 2),
    ]


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
        assert wakeups == []

    assert [sorted(wakeup.lanes) for wakeup in wakeups] == [[("default", 60)], []]
    assert [len(wakeup.shards) for wakeup in wakeups] == [0, 1]


@pytest.mark.parametrize(
    ("enqueue", "error"),
    [
        (lambda tasks: tasks.send_receipt.enqueue(42), "do not fit send_receipt.*: to is missing"),
        (lambda tasks: tasks.send_receipt.enqueue(42, to="a", cc="b"), "cc is unknown, expected"),
        (lambda tasks: tasks.send_receipt.enqueue(timezone.now(), to="a"), "Unsupported type"),
        (lambda tasks: tasks.send_receipt.using(queue_name="moon"), "Queue 'moon' is not valid"),
        (lambda tasks: tasks.send_receipt.using(priority=101), "priority must be"),
    ],
)
def test_a_wrong_task_is_refused_at_its_definition(tasks: Any, enqueue: Any, error: str) -> None:
    with pytest.raises(Exception, match=error):
        enqueue(tasks)


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

    worker = subprocess.Popen(
        [sys.executable, "-m", "timeball", "worker", "timeball.contrib.django:tb"], cwd=project_folder, env=variables
    )
    try:
        assert ended(result, seconds=120).return_value == "receipt 42 -> a@b.co"
    finally:
        worker.terminate()

    assert worker.wait(60) == 0
