"""`task_finished` for every end of a task, whatever ended it and wherever.

A worker that runs a task to its end sees whether it has succeeded, and sends the signal at once. Of the other ends it does not see
all: a task may be cancelled or expire while it waits, time out, or be lost with its worker. So a task for whose end there is a receiver
is enqueued with a call that follows any end but success (`on_failure`). The statement that ends the task writes that call, and a worker
of the project that serves the queue of the task makes it: it reads how the task has ended, and sends the signal.

A process without receivers of its own does not ask for that; then a failure is told to Django's logger by the worker that sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType

from timeball.contrib.django.compat import AnyTask, task_finished
from timeball.contrib.django.tasks import END_OF_TASK, TaskArguments, TaskRecord, result_of
from timeball.domain.handler import Handler
from timeball.handlers.registry import make_handler


@dataclass(frozen=True, slots=True)
class EndOfTask:
    """The call that follows a task that has not succeeded, in the queue of the task."""

    queue: str
    priority: int

    def as_follow_up(self) -> dict[str, Any]:
        """The call as a job keeps it."""
        payload = {"execution_id": {"$cause": "execution_id"}}
        return {"handler": END_OF_TASK, "payload": payload, "queue": self.queue, "priority": self.priority}


def has_receivers() -> bool:
    """Whether anything but Django's own logger wants to know how tasks end."""
    return any(_module_of(entry[1]) != _OWN_MODULE for entry in task_finished.receivers)


# Django's own receiver, which logs, is in the module that defines the signals.
_OWN_MODULE = f"{AnyTask.__module__.rpartition('.')[0]}.signals"


def _module_of(receiver: Any) -> str | None:
    function = receiver() if isinstance(receiver, ReferenceType) else receiver
    return _OWN_MODULE if function is None else getattr(function, "__module__", None)


def end_handler(read: Callable[[str], tuple[TaskRecord, str]], find_task: Callable[[str], AnyTask | None]) -> Handler:
    """The handler that sends the signal."""

    def end_of_task(execution_id: str) -> None:
        """Send `task_finished` for a task that has not succeeded."""
        record, payload = read(execution_id)
        task = find_task(record.execution.handler)
        if task is not None:
            result = result_of(record, task, TaskArguments.of(payload))
            task_finished.send(type(task.get_backend()), task_result=result)

    return make_handler(end_of_task, name=END_OF_TASK)
