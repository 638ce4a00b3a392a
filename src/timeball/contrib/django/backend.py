"""`Backend`: Django's tasks, enqueued and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.core import checks
from django.db import connections, transaction

from timeball.contrib.django.calls import Call
from timeball.contrib.django.frameworks import (
    AnyTask,
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from timeball.contrib.django.options import TimeballTask, check_words, enqueue_options, to_django, to_timeball
from timeball.contrib.django.program import tb
from timeball.contrib.django.records import announce, read_whole
from timeball.contrib.django.results import new_result, result_of
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.ids import ExecutionId, made_at, parse_id
from timeball.errors import InvalidInput, NotFound, TimeballError


class Backend(BaseTaskBackend):
    """Keeps tasks in Timeball: durable, at their time, in the transaction around them where the database is the same."""

    task_class: Any = TimeballTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Refuse what cannot be run here; what can is taken note of, for workers."""
        super().validate_task(task)
        tb.note(task)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Have a worker call the task; certain when this returns, or when the transaction around it commits."""
        self.validate_task(task)
        call = Call(normalize_json(args), normalize_json(kwargs))
        call.check(task)
        options = enqueue_options(task, self.options)
        execution_id = self._send(task, call, options)
        result = new_result(task, execution_id, call, made_at(parse_id("exe", execution_id)))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _send(self, task: AnyTask, call: Call, options: dict[str, Any]) -> str:
        alias = tb.home.alias
        if alias is None or not _is_in_transaction(alias):
            return tb.enqueue(task.module_path, call.payload(), **options).id
        run = tb.enqueue(task.module_path, call.payload(), **options, connection=connections[alias])
        tell = partial(announce, _id_of(run.id), options["queue"], options["priority"], options.get("at"))
        transaction.on_commit(partial(tb.ask, tell), using=alias, robust=True)
        return run.id

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """What has become of a task; TaskResultDoesNotExist if there is none, or if it is not committed yet."""
        try:
            record, payload = tb.ask(partial(read_whole, _id_of(result_id)))
        except (InvalidInput, NotFound) as error:
            raise TaskResultDoesNotExist(str(error)) from None
        execution = record.execution
        task = tb.find_task(execution.handler)
        if task is None:
            raise TaskResultDoesNotExist(f"{result_id} is of {execution.handler}, which is no task of this project")
        return result_of(record, self._as_enqueued(task, execution), Call.of(payload))

    def _as_enqueued(self, task: AnyTask, execution: Execution) -> AnyTask:
        """The task with what was said when it was enqueued, as far as the execution tells."""
        said: dict[str, Any] = {"backend": self.alias}
        if not self.queues or execution.queue in self.queues:
            said["queue_name"] = execution.queue
        if to_timeball(task.priority) != execution.priority:
            said["priority"] = to_django(execution.priority)
        if execution.state is ExecutionState.SCHEDULED:
            said["run_after"] = execution.scheduled_for
        return task.using(**said)

    # whether the settings make sense

    def check(self, **_settings: Any) -> Iterator[checks.CheckMessage]:
        """Say what of the settings cannot be, and what a project should know."""
        try:
            check_words(self.options)
            home = tb.home
        except TimeballError as error:
            yield checks.Error(str(error), hint=error.hint, obj=self._place, id="timeball.E001")
            return
        if home.alias is None and "database" not in self.options:
            yield checks.Info(
                f"Tasks are kept in {_words(home.url)}, which is no database of Django's: an enqueue is committed by itself, "
                "and a rollback around it does not take it back.",
                hint="name the database in OPTIONS if it is one of DATABASES; 'database': None says that this is meant",
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


def _words(url: str | None) -> str:
    return "the embedded PostgreSQL" if url is None else "the database of TIMEBALL_DATABASE_URL"
