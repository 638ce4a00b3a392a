"""`tb`: the Timeball of a Django project. Its handlers are the project's tasks, and it keeps them in the project's database.

    $ DJANGO_SETTINGS_MODULE=project.settings timeball worker timeball.contrib.django:tb

**Tasks.** A backend collects every task that is defined for it, because Django has it validate each one. A worker also imports the module
`tasks` of every installed app and the `modules` of a backend's OPTIONS. Handlers and schedules may be declared here as on any other
`Timeball`: `@tb.cron("0 6 * * *")` in a module `tasks` is enough.

**The database.** A project that configures nothing and has PostgreSQL keeps its tasks there, so that a task is enqueued if and only if
the transaction around it commits. TIMEBALL_DATABASE_URL and `timeball.toml` go before; if they name another database than Django's, an
enqueue is committed by itself, and a rollback does not undo it.

**Test databases.** Django's test runner points its connections to another database and drops that one in the end. Timeball follows: its
connections are closed before a test database is created, cloned or dropped, and the next one leads to where Django's connection leads
then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
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
from timeball.contrib.django.ends import EndOfTask, end_handler, has_receivers
from timeball.contrib.django.tasks import ConnectionCleanup, TaskRecord, read_with_payload, record_of, task_handler
from timeball.contrib.django.transactions import DjangoEnqueueClient
from timeball.domain.values.ids import ExecutionId, format_execution_id, parse_id
from timeball.errors import InvalidInput, NotFound, TimeballError
from timeball.sdk.app import Timeball
from timeball.sdk.handlers import Enqueueable, EnqueueTarget
from timeball.sdk.options import EnqueueOptions
from timeball.sdk.schedules import check_handler
from timeball.store.db.url import PARAMETERS, DatabaseUrl

if TYPE_CHECKING:
    from timeball.config.settings import Settings
    from timeball.contrib.django.backend import Backend
    from timeball.domain.handler import Handler
    from timeball.sdk.enqueue import SdkRuntime


T = TypeVar("T")

_TASKS = "tasks"
_VARIABLE = "DJANGO_SETTINGS_MODULE"


class DjangoTimeball(Timeball):
    """A Timeball whose handlers are Django's tasks, in the database of Django's settings."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, AnyTask] = {}
        self._is_discovered = False
        self._database: TaskDatabase | None = None
        self._database_target: tuple[Any, ...] = ()
        self._tested_alias: str | None = None

    def _make_enqueue_client(self) -> DjangoEnqueueClient:
        return DjangoEnqueueClient(
            lambda: self.settings, lambda: self._env, self._find_handler, lambda: self.task_database.alias
        )

    # the database

    @property
    def task_database(self) -> TaskDatabase:
        """The database of the tasks; looked up at the first use, and again when Django's connection leads elsewhere."""
        database = self._database
        if database is not None and self._database_target != _connection_target(database.alias):
            self.disconnect()
        if self._database is None:
            _set_up_django()
            self._database = self._find_database()
            self._database_target = _connection_target(self._database.alias)
        return self._database

    def _find_database(self) -> TaskDatabase:
        if self._tested_alias is not None:
            # TIMEBALL_DATABASE_URL leads to the database that tests must not touch.
            return task_database_of(self._tested_alias)
        return find_task_database(backend.options.get("database", NOT_SET) for backend in own_backends())

    def disconnect(self) -> None:
        """Close the connections; the next use looks up Django's database again."""
        self.close()
        self._database = None
        if self._env is None:  # otherwise a test has redirected this Timeball, and its settings stay
            self._cached_settings = None

    def test(self, alias: str) -> None:
        """Django is about to replace its database of this *alias* by one for tests: tasks that are kept there go along."""
        with suppress(TimeballError):  # the first enqueue raises it again
            if self.task_database.alias == alias:
                self._tested_alias = alias
        self.disconnect()

    def end_test(self, alias: str) -> None:
        """Django is about to drop its test database of this *alias*."""
        self.disconnect()
        if self._tested_alias == alias:
            self._tested_alias = None

    def test_database_url(self) -> str | None:
        """Django's test database, if tasks are kept there."""
        database = self.task_database
        return database.url if database.alias is not None and database.alias == self._tested_alias else None

    def check_test_is_committed(self) -> None:
        """Refuse a test inside of a transaction, such as one in a `TestCase`."""
        alias = self.task_database.alias
        if alias is not None and alias == self._tested_alias and connections[alias].in_atomic_block:
            raise InvalidInput(
                "this test is inside of a transaction that is not committed, so the worker of the fixture sees nothing of it",
                hint="use a TransactionTestCase, or @pytest.mark.django_db(transaction=True); in a TestCase, with tb.inline():",
            )

    @property
    def settings(self) -> Settings:
        """Timeball's settings; with the project's database, if they name none."""
        if self._cached_settings is None:
            self._cached_settings = load_settings(database_url=self.task_database.url)
        return self._cached_settings

    # tasks

    def add_task(self, task: AnyTask) -> None:
        """Add a task; a variant of it (`task.using(...)`) is the same task. Options that no job could have are refused."""
        if task.module_path not in self._tasks:
            check_handler(task_handler(task, {}, self))
            self._tasks[task.module_path] = task

    def find_task(self, name: str) -> AnyTask | None:
        """The task of this path, if the project has it."""
        if name not in self._tasks:
            self._discover()
        return self._tasks.get(name)

    def task_call(self, target: EnqueueTarget, options: EnqueueOptions) -> Enqueueable[..., Any]:
        """A task with the options of an enqueue."""
        if "on_failure" not in options and self._enqueue_client.inline_scope() is None and has_receivers():
            options = {**options, "on_failure": EndOfTask(options["queue"], options["priority"])}
        return Enqueueable(self._enqueue_client, target, options)

    def _task_handler(self, task: AnyTask) -> Handler:
        from timeball.contrib.django.backend import Backend

        backend = task.get_backend()
        return task_handler(task, backend.options if isinstance(backend, Backend) else {}, self)

    def _program_handlers(self) -> Iterator[Handler]:
        """All tasks of the project, and the handlers declared here; Django's connections are cleaned up around each call."""
        self._discover()
        tasks = [self._task_handler(task) for task in self._tasks.values()]
        # Django can drop its test database only if no connection of a worker of the test is left.
        cleanup = ConnectionCleanup(closes_all=self._env is not None)
        ends = end_handler(lambda id_: self.read_task(ExecutionId(parse_id("exe", id_))), self.find_task)
        for handler in (*super()._program_handlers(), *tasks, ends):
            yield replace(handler, wrappers=(cleanup, *handler.wrappers))

    def _discover(self) -> None:
        if self._is_discovered:
            return
        _set_up_django()
        autodiscover_modules(_TASKS)
        for backend in own_backends():
            for module in backend.options.get("modules", ()):
                import_module(module)
        # Tasks of other backends, too: `task.using(backend=...)` brings them here.
        for task in _tasks_of_apps():
            self.add_task(task)
        self._is_discovered = True

    # the store

    def call_store(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the store, and wait for its result."""
        _ = self.task_database  # reconnects if Django's connection leads elsewhere by now
        return self._enqueue_client.background_loop.call(work)

    def read_task(self, execution_id: ExecutionId) -> tuple[TaskRecord, str]:
        """An execution with its unsuccessful attempts, and its payload; NotFound if there is none."""
        if self._enqueue_client.inline_scope() is None:
            return self.call_store(partial(read_with_payload, execution_id))
        run = self._enqueue_client.inline_runs.find(execution_id)
        if run is None:
            raise NotFound("inline run", format_execution_id(execution_id))
        return record_of(run.record), run.record.payload

    async def acall_store(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Like `call_store`, for coroutines."""
        _ = self.task_database
        return await self._enqueue_client.background_loop.acall(work)


tb = DjangoTimeball()


def _connection_target(alias: str | None) -> tuple[Any, ...]:
    """Where Django's connection leads: each process of a parallel test run has its own database."""
    if alias is None:
        return ()
    settings = connections[alias].settings_dict
    return tuple(settings.get(name) for name in ("HOST", "PORT", "NAME", "USER"))


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
        ("clone_test_db", lambda _alias: tb.disconnect()),
        ("destroy_test_db", tb.end_test),
    ):
        setattr(BaseDatabaseCreation, name, after(follow, getattr(BaseDatabaseCreation, name)))


_follow_test_databases()


def own_backends() -> list[Backend]:
    """The backends in TASKS that are Timeball's."""
    from timeball.contrib.django.backend import Backend

    return [backend for backend in task_backends.all() if isinstance(backend, Backend)]


def _set_up_django() -> None:
    """Set Django up, in a worker for example; `manage.py` and web servers have done it before."""
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
            raise  # the settings exist, and import another module that is missing
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


# the database of a project

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class _NotSet:
    """The option is not there; None is a value of its own, which means "none of Django's"."""


NOT_SET = _NotSet()


@dataclass(frozen=True, slots=True)
class TaskDatabase:
    """Where tasks are kept: the URL, or None for the embedded PostgreSQL; and the alias, if it is a database of Django's."""

    url: str | None
    alias: str | None


def find_task_database(options: Iterable[object]) -> TaskDatabase:
    """The one database of all backends, by the option `database` of each, or NOT_SET."""
    option, *others = list(options) or [NOT_SET]
    if any(other != option for other in others):
        raise InvalidInput(
            f"the backends in TASKS name several databases, expected one and the same: {_listed([option, *others])}"
        )
    url = load_settings().database_url
    if option is None:
        return TaskDatabase(url, None)
    if isinstance(option, _NotSet):
        return _default_database(url)
    django_url = _url_of(_check_alias(option))
    # The two may differ, around a connection pooler for example: a project that names both declares them to be the same database.
    return TaskDatabase(url or django_url, str(option))


def task_database_of(alias: str) -> TaskDatabase:
    """Django's database of this *alias*, regardless of Timeball's own settings."""
    return TaskDatabase(_url_of(_check_alias(alias)), alias)


def _default_database(url: str | None) -> TaskDatabase:
    """For a project without the option: Django's default database, if it is a PostgreSQL and the one that Timeball's settings name."""
    if DEFAULT_DB_ALIAS not in connections or connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
        return TaskDatabase(url, None)
    django_url = _url_of(DEFAULT_DB_ALIAS)
    if url is not None and _hosts_and_name(url) != _hosts_and_name(django_url):
        return TaskDatabase(url, None)
    return TaskDatabase(url or django_url, DEFAULT_DB_ALIAS)


def _check_alias(alias: object) -> str:
    if not isinstance(alias, str) or alias not in connections:
        aliases = ", ".join(map(repr, connections))
        raise InvalidInput(f"OPTIONS has the database {alias!r}, expected None or one of DATABASES: {aliases}")
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        raise InvalidInput(f"OPTIONS has the database {alias!r}, which is {vendor}, expected a PostgreSQL")
    return alias


def _url_of(alias: str) -> str:
    """A database of Django's as a URL."""
    settings: Mapping[str, Any] = connections[alias].settings_dict
    options: Mapping[str, Any] = settings.get("OPTIONS") or {}
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    # Django passes these to libpq; the other options are for Django itself, or for its driver.
    query = {name: options[name] for name in PARAMETERS if name in options}
    if host.startswith("/") or "," in host:
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return f"postgresql://{_login(settings)}{place}/{quote(str(settings.get('NAME') or ''), safe='')}" + (
        f"?{urlencode(query, quote_via=quote, safe=',')}" if query else ""
    )


def _login(settings: Mapping[str, Any]) -> str:
    user, password = str(settings.get("USER") or ""), str(settings.get("PASSWORD") or "")
    if not user:
        return ""
    return quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"


def _hosts_and_name(url: str) -> tuple[list[tuple[str, int]], str | None]:
    """Hosts, ports and name of a database, as far as two URLs can be compared by them."""
    parsed = DatabaseUrl.parse(url)
    hosts = ((host.name, host.port) for host in parsed.hosts())
    return sorted(("localhost" if name in _LOCAL else name, port) for name, port in hosts), parsed.database


def _listed(options: Iterable[object]) -> str:
    return ", ".join(sorted("nothing" if isinstance(option, _NotSet) else repr(option) for option in options))
