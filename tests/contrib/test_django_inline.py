"""Inline runs in a Django project: in the transaction of a test, with handlers and with tasks."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.sdk.conftest import ON_ONE_SERVER
from timeball.errors import InlineOnly

pytestmark = ON_ONE_SERVER


@pytest.fixture
def tasks(shop: Any) -> Any:
    return importlib.import_module("bookshop.tasks")


def stored() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM timeball.execution")
        return int(cursor.fetchone()[0])


def test_a_handler_runs_in_the_transaction_of_its_caller(tasks: Any, shop: Any) -> None:
    with transaction.atomic(), shop.inline(raise_errors=True):
        order = tasks.Order.objects.create(to="ada")
        names = [tasks.name_of_order.enqueue(order.pk), tasks.name_of_order_in_coroutine.enqueue(order.pk)]
        added = tasks.add_order.enqueue("bob")
        assert [run.result() for run in names] == ["ada", "ada"]
        assert tasks.Order.objects.get(pk=added.result()).to == "bob"
        transaction.set_rollback(True)

    assert (tasks.Order.objects.count(), stored()) == (0, 0)


def test_coroutines_enqueue_in_the_transaction_of_the_thread_that_waits_for_them(tasks: Any, shop: Any) -> None:
    async def names(order_id: int) -> list[str]:
        runs = [await tasks.name_of_order.aenqueue(order_id), await tasks.name_of_order_in_coroutine.aenqueue(order_id)]
        runs += await sync_to_async(tasks.name_of_order.enqueue_many)([tasks.name_of_order.call(order_id)])
        return [run.result() for run in runs]

    with transaction.atomic(), shop.inline(raise_errors=True):
        order = tasks.Order.objects.create(to="ada")
        assert async_to_sync(names)(order.pk) == ["ada", "ada", "ada"]


def test_the_connection_stays_as_the_caller_has_it(tasks: Any, shop: Any) -> None:
    order = tasks.Order.objects.create(to="ada")
    session = connection.connection

    with CaptureQueriesContext(connection) as queries, shop.inline(raise_errors=True):
        tasks.name_of_order.options(connection=connection).enqueue(order.pk)

    assert len(queries) == 1
    assert connection.connection is session


def test_an_error_that_is_kept_leaves_what_the_handler_wrote(tasks: Any, shop: Any) -> None:
    with transaction.atomic(), shop.inline():
        run = tasks.add_order.enqueue("nobody")
    assert (run.state(), tasks.Order.objects.count()) == ("dead", 1)

    with pytest.raises(LookupError), transaction.atomic(), shop.inline(raise_errors=True):
        tasks.add_order.enqueue("nobody")
    assert tasks.Order.objects.count() == 1


def test_schedules_are_refused(tasks: Any, shop: Any) -> None:
    with shop.inline(), pytest.raises(InlineOnly):
        tasks.send_invoice.schedule("0 9 * * *", name="daily", arguments={"order_id": 1})


def test_tasks_run_inline_with_their_signals_and_results(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import task_enqueued, task_finished, task_started

    steps: list[tuple[str, str, int]] = []
    receivers = [
        lambda task_result, step=step, **_: steps.append((step, str(task_result.status), task_result.attempts))
        for step in ("enqueued", "started", "finished")
    ]
    for signal, receiver in zip((task_enqueued, task_started, task_finished), receivers, strict=True):
        signal.connect(receiver)

    with shop.inline():
        sent = tasks.send_receipt.enqueue(42, to="a@b.co")
        failed = tasks.fail_at_first.enqueue(times=1)
        counted = async_to_sync(tasks.count_orders.aenqueue)()
        sent.refresh()

    assert [step[0] for step in steps] == ["enqueued", "started", "finished"] * 3
    assert steps[:3] == [("enqueued", "READY", 0), ("started", "RUNNING", 1), ("finished", "SUCCESSFUL", 1)]
    assert (sent.status, sent.return_value, sent.attempts) == ("SUCCESSFUL", "receipt 42 -> a@b.co", 1)
    assert (sent.args, sent.kwargs, sent.task.priority) == ([42], {"to": "a@b.co"}, 10)
    assert (failed.status, [error.exception_class for error in failed.errors]) == ("FAILED", [LookupError])
    assert counted.return_value == 0
    assert stored() == 0


def test_a_task_may_be_tried_again_inline(tasks: Any, shop: Any) -> None:
    with shop.inline(retries=True):
        attempt, _, errors, _ = tasks.fail_at_first.enqueue(times=2).return_value

    assert (attempt, errors) == (3, 2)


def test_a_result_that_is_not_known_is_not_found_inline(tasks: Any, shop: Any) -> None:
    from timeball.contrib.django.compat import TaskResultDoesNotExist

    with shop.inline(), pytest.raises(TaskResultDoesNotExist):
        tasks.send_receipt.get_result("exe_" + "0" * 26)
