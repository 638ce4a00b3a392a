"""Timeball as a backend of Django's tasks, and the program that a worker runs for a Django project.

    TASKS = {"default": {"BACKEND": "timeball.contrib.django.Backend"}}

    $ DJANGO_SETTINGS_MODULE=project.settings timeball worker timeball.contrib.django:tb

`django.tasks` is used where Django has it (6.0 and later), and its backport `django_tasks` before.
"""

from __future__ import annotations

from timeball.contrib.django.app import tb
from timeball.contrib.django.backend import Backend
from timeball.contrib.django.options import task

__all__ = ["Backend", "task", "tb"]
