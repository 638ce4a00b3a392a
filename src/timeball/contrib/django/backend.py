"""`Backend`: Django's task backend, and the options of Timeball that a task (`@task(retries=5)`) or a backend (OPTIONS) may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from timeball.contrib.django.app import tb
from timeball.contrib.django.compat import (
    AnyTask,
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from timeball.contrib.django.tasks import TaskArguments, announce, new_result, read_with_payload, result_of
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.values.ids import ExecutionId, id_created_at, parse_id
from timeball.errors import InvalidInput, NotFound, TimeballError
from timeball.sdk.options import SharedOptions


class _Unset:
    """The option is not there; None is a value of its own, as in `timeout=None`."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = _Unset()


# Queue and priority are Django's own options, with values of its own.
TASK_OPTIONS = SharedOptions.__optional_keys__ - {"queue", "priority"}
# A task with the options that Timeball has beyond Django's; they are those of `@tb.handler(...)`.
TimeballTask: Any = make_dataclass(
    "TimeballTask",
    [(word, Any, field(default=UNSET)) for word in sorted(TASK_OPTIONS)],
    bases=(AnyTask,),
    namespace={"__module__": __name__},
    frozen=True,
    slots=True,
    kw_only=True,
)


# A backend's OPTIONS may have these, too.
_BACKEND_OPTIONS = frozenset({"database", "modules"})


def enqueue_options(task: AnyTask, backend_options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one enqueue: those of the task go before those of its backend."""
    check_options(backend_options)
    options = {name: value for name, value in backend_options.items() if name in TASK_OPTIONS}
    options |= dict(_task_options(task))
    options |= {"queue": task.queue_name, "priority": to_timeball_priority(task.priority)}
    if task.run_after is not None and (at := _aware(task.run_after)) > timezone.now():
        options["at"] = at
    return options


def check_options(backend_options: Mapping[str, Any]) -> None:
    """Refuse unknown OPTIONS."""
    names = TASK_OPTIONS | _BACKEND_OPTIONS
    for name in backend_options:
        if name not in names:
            raise InvalidInput(f"OPTIONS has {name!r}, expected some of {', '.join(sorted(names))}", field=name)


def _task_options(task: AnyTask) -> Iterator[tuple[str, Any]]:
    for name in TASK_OPTIONS:
        value = getattr(task, name, UNSET)
        if value is not UNSET:
            yield name, value


def _aware(instant: datetime) -> datetime:
    """An instant with its zone: without USE_TZ, Django's instants are local times of TIME_ZONE."""
    return timezone.make_aware(instant) if timezone.is_naive(instant) else instant


def to_timeball_priority(priority: int) -> int:
    """Django's priorities from -100 to 100 as Timeball's from 0 to 100; 0 is 50."""
    return (int(priority) + 100) // 2


def to_django_priority(priority: int) -> int:
    """The reverse; an odd priority of Django's comes back as the next lower one."""
    return priority * 2 - 100


class Backend(BaseTaskBackend):
    """Keeps tasks in Timeball: durable, run at their time, and enqueued in the transaction around them if the database is the same."""

    task_class: Any = TimeballTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Refuse a task that cannot be run here; any other is added to the handlers."""
        super().validate_task(task)
        tb.add_task(task)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Have a worker call the task; durable when this returns, or when the transaction around it commits."""
        self.validate_task(task)
        call = TaskArguments(normalize_json(args), normalize_json(kwargs))
        call.check(task)
        options = enqueue_options(task, self.options)
        execution_id = self._send(task, call, options)
        result = new_result(task, execution_id, call, id_created_at(parse_id("exe", execution_id)))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _send(self, task: AnyTask, call: TaskArguments, options: dict[str, Any]) -> str:
        alias = tb.task_database.alias
        if alias is None or not _is_in_transaction(alias):
            return tb.enqueue(task.module_path, call.payload(), **options).id
        run = tb.enqueue(task.module_path, call.payload(), **options, connection=connections[alias])
        wake_workers = partial(announce, _id_of(run.id), options["queue"], options["priority"], options.get("at"))
        transaction.on_commit(partial(tb.call_store, wake_workers), using=alias, robust=True)
        return run.id

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result of a task so far; TaskResultDoesNotExist if there is no such task, or if it is not committed yet."""
        try:
            record, payload = tb.call_store(partial(read_with_payload, _id_of(result_id)))
        except (InvalidInput, NotFound) as error:
            raise TaskResultDoesNotExist(str(error)) from None
        execution = record.execution
        task = tb.find_task(execution.handler)
        if task is None:
            raise TaskResultDoesNotExist(f"{result_id} is of {execution.handler}, which is not a task of this project")
        return result_of(record, self._as_enqueued(task, execution), TaskArguments.of(payload))

    def _as_enqueued(self, task: AnyTask, execution: Execution) -> AnyTask:
        """The task with the options of its enqueue, as far as the execution shows them."""
        options: dict[str, Any] = {"backend": self.alias}
        if not self.queues or execution.queue in self.queues:
            options["queue_name"] = execution.queue
        if to_timeball_priority(task.priority) != execution.priority:
            options["priority"] = to_django_priority(execution.priority)
        if execution.state is ExecutionState.SCHEDULED:
            options["run_after"] = execution.scheduled_for
        return task.using(**options)

    # system checks

    def check(self, **_settings: Any) -> Iterator[checks.CheckMessage]:
        """Report what is wrong with the settings, and what a project should know of them."""
        try:
            check_options(self.options)
            database = tb.task_database
        except TimeballError as error:
            yield checks.Error(str(error), hint=error.hint, obj=self._place, id="timeball.E001")
            return
        if database.alias is None and "database" not in self.options:
            yield checks.Info(
                f"Tasks are kept in {_database_name(database.url)}, which is not a database of Django's: an enqueue is committed "
                "by itself, and a rollback around it does not undo it.",
                hint="name the database in OPTIONS if it is one of DATABASES; 'database': None declares that this is intended",
                obj=self._place,
                id="timeball.I001",
            )

    @property
    def _place(self) -> str:
        return f"TASKS[{self.alias!r}]"


def _id_of(text: str) -> ExecutionId:
    return ExecutionId(parse_id("exe", text))


def _is_in_transaction(alias: str) -> bool:
    connection = connections[alias]
    return connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())


def _database_name(url: str | None) -> str:
    return "the embedded PostgreSQL" if url is None else "the database of TIMEBALL_DATABASE_URL"
