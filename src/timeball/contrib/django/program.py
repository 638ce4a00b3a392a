"""The program of a Django project: its tasks are the handlers, and its settings say where they are kept.

    $ DJANGO_SETTINGS_MODULE=project.settings timeball worker timeball.contrib.django:tb

A backend takes note of every task that is defined for it (Django has it check each one), and a worker imports the module
`tasks` of every installed app, and what OPTIONS name as `modules`, so that it knows them all. Handlers and schedules may be
declared here as on any other `Timeball`: `@tb.cron("0 6 * * *")` in a module `tasks` is enough.

Django's test runner gives its connections another database and drops it in the end. Timeball goes along: its connections are closed
before a test database is made, copied or dropped, and the next one leads to where Django's connection leads by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.db import connections
from django.db.backends.base.creation import BaseDatabaseCreation
from django.utils.module_loading import autodiscover_modules

from timeball.app import Timeball
from timeball.contrib.django.frameworks import AnyTask, Task, task_backends
from timeball.contrib.django.homes import UNSAID, Home, find_home, home_of
from timeball.contrib.django.running import task_handler, tidied
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.registry import Registry
from timeball.settings import load_settings

if TYPE_CHECKING:
    from timeball.contrib.django.backend import Backend
    from timeball.office import Desk
    from timeball.settings import Settings

T = TypeVar("T")

_TASKS = "tasks"
_VARIABLE = "DJANGO_SETTINGS_MODULE"


class DjangoTimeball(Timeball):
    """A Timeball whose handlers are Django's tasks, in the database that Django's settings lead to."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, AnyTask] = {}
        self._is_discovered = False
        self._known_home: Home | None = None
        self._place_of_home: tuple[Any, ...] = ()
        self._tested_alias: str | None = None

    # where

    @property
    def home(self) -> Home:
        """The database of the tasks; found when first asked for, and anew when Django's connection leads elsewhere."""
        known = self._known_home
        if known is not None and self._place_of_home != _place_of(known.alias):
            self.let_go()
        if self._known_home is None:
            _set_up()
            self._known_home = self._found_home()
            self._place_of_home = _place_of(self._known_home.alias)
        return self._known_home

    def _found_home(self) -> Home:
        if self._tested_alias is not None:
            # TIMEBALL_DATABASE_URL leads to the database that the tests are not to touch.
            return home_of(self._tested_alias)
        return find_home(backend.options.get("database", UNSAID) for backend in own_backends())

    def let_go(self) -> None:
        """Close the connections and forget where they led; the next use looks where Django's database is."""
        self.close()
        self._known_home = None
        if self._env is None:  # else it is redirected, and the redirection says where to
            self._known_settings = None

    def test(self, alias: str) -> None:
        """From now on Django's database of this *alias* is one for tests; it is the home of tasks if it was so before."""
        with suppress(TimeballError):  # told to the first who enqueues
            if self.home.alias == alias:
                self._tested_alias = alias
        self.let_go()

    def end_test(self, alias: str) -> None:
        """Django's database of this *alias* is about to be what it was before."""
        self.let_go()
        if self._tested_alias == alias:
            self._tested_alias = None

    @property
    def settings(self) -> Settings:
        """Timeball's settings, with the database of the project if they name none."""
        if self._known_settings is None:
            self._known_settings = load_settings(database_url=self.home.url)
        return self._known_settings

    # which tasks

    def note(self, task: AnyTask) -> None:
        """Take note of a task; a variant of one that is known (`task.using(...)`) is the same task."""
        self._tasks.setdefault(task.module_path, task)

    def find_task(self, name: str) -> AnyTask | None:
        """The task of that path, if it is one of this project's."""
        if name not in self._tasks:
            self._discover()
        return self._tasks.get(name)

    @property
    def registry(self) -> Registry:
        """All tasks of the project, and the handlers declared here; each leaves Django's connections tidy."""
        self._discover()
        tasks = [task_handler(task, self) for task in self._tasks.values()]
        return Registry(tidied(handler) for handler in (*self._registry, *tasks))

    def _discover(self) -> None:
        if self._is_discovered:
            return
        _set_up()
        autodiscover_modules(_TASKS)
        for backend in own_backends():
            for module in backend.options.get("modules", ()):
                import_module(module)
        # Those of other backends too: `task.using(backend=...)` brings them here.
        for task in _tasks_of_apps():
            self.note(task)
        self._is_discovered = True

    # the store

    def ask(self, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        """Have something asked of the store, and wait for the answer."""
        _ = self.home  # it may lead elsewhere by now
        return self._office.portal.call(work)

    async def aask(self, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        """Like `ask`, for coroutines."""
        _ = self.home
        return await self._office.portal.acall(work)


tb = DjangoTimeball()


def _place_of(alias: str | None) -> tuple[Any, ...]:
    """Where Django's connection leads: another place in the processes of a parallel test run."""
    if alias is None:
        return ()
    found = connections[alias].settings_dict
    return tuple(found.get(name) for name in ("HOST", "PORT", "NAME", "USER"))


def _go_along_with_tests() -> None:
    """Django has no signal for making or dropping a test database, so the calls that do it are wrapped here."""

    def after(follow: Callable[[str], None], change: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(change)
        def changed(creation: Any, *args: Any, **kwargs: Any) -> Any:
            follow(creation.connection.alias)
            return change(creation, *args, **kwargs)

        return changed

    for name, follow in (
        ("create_test_db", tb.test),
        ("clone_test_db", lambda _alias: tb.let_go()),
        ("destroy_test_db", tb.end_test),
    ):
        setattr(BaseDatabaseCreation, name, after(follow, getattr(BaseDatabaseCreation, name)))


_go_along_with_tests()


def own_backends() -> list[Backend]:
    """The backends of Timeball's that TASKS names."""
    from timeball.contrib.django.backend import Backend

    return [backend for backend in task_backends.all() if isinstance(backend, Backend)]


def _set_up() -> None:
    """Set Django up, where nobody has: in a worker."""
    if apps.ready:
        return
    named = os.environ.get(_VARIABLE)
    if not (django_settings.configured or named):
        raise InvalidInput(
            "DJANGO_SETTINGS_MODULE is not set, and it says where the settings of the Django project are",
            field=_VARIABLE,
            hint="set it as manage.py does: DJANGO_SETTINGS_MODULE=project.settings timeball worker timeball.contrib.django:tb",
        )
    try:
        django.setup()
    except ModuleNotFoundError as error:
        if error.name is None or not f"{named}.".startswith(f"{error.name}."):
            raise  # the settings are there, and miss another module
        raise InvalidInput(
            f"{_VARIABLE} is {named}, and there is no module {error.name!r}",
            field=_VARIABLE,
            hint="start it in the folder of manage.py, or set PYTHONPATH to that folder",
        ) from None


def _tasks_of_apps() -> Iterator[AnyTask]:
    for app in apps.get_app_configs():
        module = sys.modules.get(f"{app.name}.{_TASKS}")
        if module is not None:
            yield from (value for value in vars(module).values() if issubclass(type(value), Task))
