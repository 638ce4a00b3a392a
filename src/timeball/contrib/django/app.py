"""`tb`: the Timeball of a Django project, its tasks as handlers, in the project's database."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.creation import BaseDatabaseCreation
from django.utils.module_loading import autodiscover_modules

from timeball.config.settings import load_settings
from timeball.contrib.django.compat import AnyTask, Task, task_backends
from timeball.contrib.django.handlers import ConnectionCleanup, task_handler
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.registry import Registry
from timeball.sdk.app import Timeball
from timeball.store.db.url import PARAMETERS, DatabaseUrl

if TYPE_CHECKING:
    from timeball.config.settings import Settings
    from timeball.contrib.django.backend import Backend
    from timeball.sdk.enqueue import SdkRuntime


# The program of a Django project: its tasks are the handlers, and its settings say where they are kept.
#
# $ DJANGO_SETTINGS_MODULE=project.settings timeball worker timeball.contrib.django:tb
#
# A backend takes note of every task that is defined for it (Django has it check each one), and a worker imports the module
# `tasks` of every installed app, and what OPTIONS name as `modules`, so that it knows them all. Handlers and schedules may be
# declared here as on any other `Timeball`: `@tb.cron("0 6 * * *")` in a module `tasks` is enough.
#
# Django's test runner gives its connections another database and drops it in the end. Timeball goes along: its connections are closed
# before a test database is made, copied or dropped, and the next one leads to where Django's connection leads by then.

T = TypeVar("T")

_TASKS = "tasks"
_VARIABLE = "DJANGO_SETTINGS_MODULE"


class DjangoTimeball(Timeball):
    """A Timeball whose handlers are Django's tasks, in the database that Django's settings lead to."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, AnyTask] = {}
        self._is_discovered = False
        self._known_home: TaskDatabase | None = None
        self._place_of_home: tuple[Any, ...] = ()
        self._tested_alias: str | None = None

    # where

    @property
    def home(self) -> TaskDatabase:
        """The database of the tasks; found when first asked for, and anew when Django's connection leads elsewhere."""
        known = self._known_home
        if known is not None and self._place_of_home != _connection_target(known.alias):
            self.let_go()
        if self._known_home is None:
            _set_up_django()
            self._known_home = self._found_home()
            self._place_of_home = _connection_target(self._known_home.alias)
        return self._known_home

    def _found_home(self) -> TaskDatabase:
        if self._tested_alias is not None:
            # TIMEBALL_DATABASE_URL leads to the database that the tests are not to touch.
            return task_database_of(self._tested_alias)
        return find_task_database(backend.options.get("database", NOT_SET) for backend in own_backends())

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
        cleanup = ConnectionCleanup()
        return Registry(replace(handler, around=(cleanup, *handler.around)) for handler in (*self._registry, *tasks))

    def _discover(self) -> None:
        if self._is_discovered:
            return
        _set_up_django()
        autodiscover_modules(_TASKS)
        for backend in own_backends():
            for module in backend.options.get("modules", ()):
                import_module(module)
        # Those of other backends too: `task.using(backend=...)` brings them here.
        for task in _tasks_of_apps():
            self.note(task)
        self._is_discovered = True

    # the store

    def ask(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Have something asked of the store, and wait for the answer."""
        _ = self.home  # it may lead elsewhere by now
        return self._enqueue_client.background_loop.call(work)

    async def acall_store(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Like `ask`, for coroutines."""
        _ = self.home
        return await self._enqueue_client.background_loop.acall(work)


tb = DjangoTimeball()


def _connection_target(alias: str | None) -> tuple[Any, ...]:
    """Where Django's connection leads: another place in the processes of a parallel test run."""
    if alias is None:
        return ()
    found = connections[alias].settings_dict
    return tuple(found.get(name) for name in ("HOST", "PORT", "NAME", "USER"))


def _follow_test_databases() -> None:
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


_follow_test_databases()


def own_backends() -> list[Backend]:
    """The backends of Timeball's that TASKS names."""
    from timeball.contrib.django.backend import Backend

    return [backend for backend in task_backends.all() if isinstance(backend, Backend)]


def _set_up_django() -> None:
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


# In which database the tasks of a Django project are kept, and whose transactions an enqueue joins.
#
# A project that says nothing and has PostgreSQL keeps them there, so that a task is enqueued if and only if the transaction
# around it commits. TIMEBALL_DATABASE_URL and `timeball.toml` go before; should they name another database than Django's, an
# enqueue is committed by itself, and a rollback does not take it back.

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class _NotSet:
    """No word about the database: None is one, it means "none of Django's"."""


NOT_SET = _NotSet()


@dataclass(frozen=True, slots=True)
class TaskDatabase:
    """Where tasks are kept: the URL, or None for the embedded PostgreSQL; and the alias of the Django database that it is, if it is one."""

    url: str | None
    alias: str | None


def find_task_database(said: Iterable[object]) -> TaskDatabase:
    """The one home of all backends, by what the OPTIONS of each say of `database` (or UNSAID)."""
    word, *others = list(said) or [NOT_SET]
    if any(other != word for other in others):
        raise InvalidInput(
            f"the backends in TASKS name several databases, expected one and the same: {_listed([word, *others])}"
        )
    given = load_settings().database_url
    if word is None:
        return TaskDatabase(given, None)
    if isinstance(word, _NotSet):
        return _default_database(given)
    own = _url_of(_check_alias(word))
    # Another way into the same database, past a pooler for example: whoever names both says that they are the same.
    return TaskDatabase(given or own, str(word))


def task_database_of(alias: str) -> TaskDatabase:
    """Django's database of this *alias*, whatever Timeball's own settings say."""
    return TaskDatabase(_url_of(_check_alias(alias)), alias)


def _default_database(given: str | None) -> TaskDatabase:
    """The home of those who say nothing: Django's own database, if nothing speaks against it."""
    if DEFAULT_DB_ALIAS not in connections or connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
        return TaskDatabase(given, None)
    own = _url_of(DEFAULT_DB_ALIAS)
    if given is not None and _hosts_and_name(given) != _hosts_and_name(own):
        return TaskDatabase(given, None)
    return TaskDatabase(given or own, DEFAULT_DB_ALIAS)


def _check_alias(alias: object) -> str:
    if not isinstance(alias, str) or alias not in connections:
        known = ", ".join(map(repr, connections))
        raise InvalidInput(f"OPTIONS has the database {alias!r}, expected None or one of DATABASES: {known}")
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        raise InvalidInput(f"OPTIONS has the database {alias!r}, which is {vendor}, expected a PostgreSQL")
    return alias


def _url_of(alias: str) -> str:
    """A database of Django's as a URL."""
    found: Mapping[str, Any] = connections[alias].settings_dict
    options: Mapping[str, Any] = found.get("OPTIONS") or {}
    host, port = str(found.get("HOST") or ""), str(found.get("PORT") or "")
    # What Django hands to libpq; the rest is for Django itself, or for its driver.
    query = {name: options[name] for name in PARAMETERS if name in options}
    if host.startswith("/") or "," in host:
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return f"postgresql://{_login(found)}{place}/{quote(str(found.get('NAME') or ''), safe='')}" + (
        f"?{urlencode(query, quote_via=quote, safe=',')}" if query else ""
    )


def _login(found: Mapping[str, Any]) -> str:
    user, password = str(found.get("USER") or ""), str(found.get("PASSWORD") or "")
    if not user:
        return ""
    return quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"


def _hosts_and_name(url: str) -> tuple[list[tuple[str, int]], str | None]:
    """Hosts, ports and name of a database, as far as two URLs can be compared by them."""
    parsed = DatabaseUrl.parse(url)
    hosts = ((host.name, host.port) for host in parsed.hosts())
    return sorted(("localhost" if name in _LOCAL else name, port) for name, port in hosts), parsed.database


def _listed(words: Iterable[object]) -> str:
    return ", ".join(sorted("nothing" if isinstance(word, _NotSet) else repr(word) for word in words))
