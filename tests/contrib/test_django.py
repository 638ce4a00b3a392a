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
from django.utils import timezone

from tests.conftest import FreshDatabase
from tests.contrib.conftest import environment_of
from tests.sdk.conftest import ON_ONE_SERVER, SOURCES
from tests.support.pace import patience

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
    """What is stored of each execution, the oldest first."""
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


def test_a_failed_task_is_tried_again_and_sees_it_in_its_context(tasks: Any, worker: Worker) -> None:
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


def test_a_task_that_fails_for_good_says_why(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.fail_at_once.enqueue())

    assert result.status == "FAILED"
    assert [error.exception_class for error in result.errors] == [LookupError]
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_result_that_is_no_json_fails_at_the_first_try(tasks: Any, worker: Worker) -> None:
    with worker():
        result = ended(tasks.returns_no_json.enqueue())

    assert (result.status, result.attempts) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, TypeError)


def test_signals_tell_of_every_step(tasks: Any, worker: Worker) -> None:
    from timeball.contrib.django.compat import task_enqueued, task_finished, task_started

    told: list[tuple[str, str, int]] = []
    receivers = [
        lambda task_result, word=word, **_: told.append((word, str(task_result.status), task_result.attempts))
        for word in ("enqueued", "started", "finished")
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

    # A worker may have begun before the program that enqueues is told so: only the steps of each have an order.
    tries = [("started", "RUNNING", 1), ("started", "RUNNING", 2)]
    assert [step for step in told if step[0] == "enqueued"] == [("enqueued", "READY", 0)] * 2
    assert [step for step in told if step[0] != "enqueued"] == [
        *tries,
        ("finished", "SUCCESSFUL", 2),
        *tries,
        ("finished", "FAILED", 2),
    ]


@pytest.mark.parametrize("name", ["session_of_thread", "session_of_coroutine"])
def test_connections_are_closed_after_a_task(tasks: Any, worker: Worker, name: str) -> None:
    with worker():
        session = ended(getattr(tasks, name).enqueue()).return_value

        # The server takes a moment to notice that its client has gone.
        deadline = time.monotonic() + patience(30)
        while is_alive(session):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def is_alive(session: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", [session])
        found: bool = cursor.fetchone()[0]
        return found


# enqueuing


def test_queue_priority_and_time_are_kept(tasks: Any) -> None:
    later = timezone.now() + timedelta(hours=1)

    tasks.positions.using(priority=-100).enqueue()
    tasks.positions.using(priority=100, run_after=timezone.now() - timedelta(hours=1)).enqueue()
    result = tasks.positions.using(priority=7, run_after=later).enqueue()

    assert [row["priority"] for row in stored()] == [0, 100, 53]
    assert [row["state"] for row in stored()] == ["queued", "queued", "scheduled"]
    assert [row["is_later"] for row in stored()] == [False, False, True]
    again = tasks.positions.get_result(result.id)
    assert (again.status, again.task.priority) == ("READY", 6)
    assert again.task.run_after == later


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


def test_any_handler_can_be_enqueued_in_a_transaction_of_django_s(shop: Any) -> None:
    for takes_it_back in (True, False):
        with transaction.atomic():
            shop.enqueue("test.echo", {"hello": "world"}, connection=connection)
            transaction.set_rollback(takes_it_back)

    assert [row["handler"] for row in stored()] == ["test.echo"]


def test_a_task_in_a_transaction_is_nobodys_before_the_commit(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import TaskResultDoesNotExist

    with transaction.atomic():
        result = tasks.positions.enqueue()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    result.refresh()
    assert result.status == "READY"


def test_workers_are_told_when_a_transaction_has_brought_something(
    tasks: Any, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr("timeball.store.db.notifier.Notifier.tell", lambda _self, hints: told.append(hints))

    with transaction.atomic():
        tasks.positions.using(priority=20).enqueue()
        tasks.positions.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        assert told == []

    assert [sorted(hints.lanes) for hints in told] == [[("default", 60)], []]
    assert [len(hints.shards) for hints in told] == [0, 1]


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
def test_what_cannot_be_run_is_refused_where_it_is_written(tasks: Any, enqueue: Any, error: str) -> None:
    with pytest.raises(Exception, match=error):
        enqueue(tasks)


def test_results_that_are_not_there(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import TaskResultDoesNotExist

    foreign = shop.enqueue("test.echo", {"hello": "world"})

    for result_id, why in [
        ("rubbish", "is not an id"),
        ("exe_" + "0" * 26, "there is no"),
        (foreign.id, "no task of this"),
    ]:
        with pytest.raises(TaskResultDoesNotExist, match=why):
            tasks.send_receipt.get_result(result_id)


# the program


def test_the_program_knows_all_tasks_and_what_is_declared_beside_them(shop: Any) -> None:
    known = set(shop.registry.names())

    assert {
        "bookshop.tasks.send_receipt",
        "bookshop.tasks.count_orders",
        "bookshop.nightly.tasks:clear_sessions",
    } <= known
    assert list(shop.schedules) == ["bookshop.nightly.tasks:clear_sessions"]


def test_the_command_of_the_guide_serves_its_project(
    tasks: Any, project_folder: Path, fresh_database: FreshDatabase
) -> None:
    """No variable of Timeball's names a database: the worker finds it through Django."""
    given = os.environ | environment_of(fresh_database) | {"PYTHONPATH": str(SOURCES), "TIMEBALL_MIGRATE": "false"}
    result = tasks.send_receipt.enqueue(42, to="a@b.co")

    worker = subprocess.Popen(
        [sys.executable, "-m", "timeball", "worker", "timeball.contrib.django:tb"], cwd=project_folder, env=given
    )
    try:
        assert ended(result, seconds=120).return_value == "receipt 42 -> a@b.co"
    finally:
        worker.terminate()

    assert worker.wait(60) == 0
