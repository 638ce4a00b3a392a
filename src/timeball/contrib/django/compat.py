"""The names of Django's task framework: from Django 6 on its own, before that from the backport `django_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

# A type checker sees the backport, which has the same names and has types.
if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    # Django's own is not generic.
    AnyTask = Task

__all__ = [
    "AnyTask",
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
