"""`Backend`: Django's task backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core import checks

from timeball.contrib.django.app import tb
from timeball.contrib.django.compat import (
    AnyTask,
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from timeball.contrib.django.options import (
    TimeballTask,
    check_backend_options,
    enqueue_options,
    to_django_priority,
    to_timeball_priority,
)
from timeball.contrib.django.tasks import TaskArguments, TaskBinder, new_result, record_of, result_of
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.values.ids import ExecutionId, id_created_at, parse_id
from timeball.errors import InvalidInput, NotFound, TimeballError
from timeball.sdk.handlers import EnqueueTarget
from timeball.sdk.inline_runs import InlineRun


class Backend(BaseTaskBackend):
    """Keeps tasks in Timeball: durable, run at their time, and enqueued in the transaction around them if the database is the same."""

    task_class: Any = TimeballTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._targets: dict[str, EnqueueTarget] = {}

    def validate_task(self, task: AnyTask) -> None:
        """Refuse a task that cannot be run here; any other is added to the handlers."""
        super().validate_task(task)
        tb.add_task(task)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Have a worker call the task; durable when this returns, or when the transaction around it commits."""
        super().validate_task(task)
        tb.add_task(task)
        target = tb.task_call(self._target(task), enqueue_options(task, self.options))
        payload = target.call(*args, **kwargs).payload
        run, call = target.enqueue_payload(payload), TaskArguments.of(payload)
        if isinstance(run, InlineRun):
            return result_of(record_of(run.record), task, call)
        result = new_result(task, run.id, call, id_created_at(parse_id("exe", run.id)))
        if run.is_new:  # otherwise the task with this key waits or runs already
            task_enqueued.send(type(self), task_result=result)
        return result

    def _target(self, task: AnyTask) -> EnqueueTarget:
        """The task for an enqueue; its options are not part of it, because a variant of it has others."""
        target = self._targets.get(task.module_path)
        if target is None:
            encode = TaskBinder(task, tb).encode
            target = self._targets[task.module_path] = EnqueueTarget(task.module_path, {}, encode, None)
        return target

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result of a task so far; TaskResultDoesNotExist if there is no such task, or if it is not committed yet."""
        try:
            record, payload = tb.read_task(_id_of(result_id))
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
            check_backend_options(self.options)
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


def _database_name(url: str | None) -> str:
    return "the embedded PostgreSQL" if url is None else "the database of TIMEBALL_DATABASE_URL"
