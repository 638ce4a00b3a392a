"""The Django project of the guide, in its own folder, with the test's database."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from tests.conftest import FreshDatabase
from tests.sdk.conftest import running_node
from timeball.config.settings import load_settings
from timeball.env import Env

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "django.md"
_BLOCK = re.compile(r"```python\n# (?P<path>\S+)\n(?P<code>.*?)```", re.DOTALL)

# The other files of a project, as `startproject` writes them.
_SETTINGS = """
import os
SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["bookshop", "bookshop.nightly", *(["django_tasks"] if os.environ["TASKS_ARE"] == "django_tasks" else [])]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
LOGGING_CONFIG = None
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql",
    **{name.removeprefix("TEST_DB_"): value for name, value in os.environ.items() if name.startswith("TEST_DB_")},
}, "archive": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
_MODELS = """
from django.db import models

class Order(models.Model):
    to = models.CharField(max_length=200)
"""
_MORE_TASKS = """

import os
import time
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated
from uuid import UUID
from asgiref.sync import sync_to_async
from django.db import connection
from bookshop.models import Order
from timeball import Depends, Isolate, current
from timeball.contrib.django import task as task_of_timeball, tb


@task(takes_context=True)
def fail_at_first(context, times: int):
    if context.attempt <= times:
        raise LookupError(f"try {context.attempt}")
    return [context.attempt, context.task_result.id, len(context.task_result.errors), context.task_result.worker_ids]


@task_of_timeball(retries=0)
def fail_at_once():
    raise LookupError("nothing there")


@task
async def count_orders() -> int:
    return await Order.objects.acount()


@task
def returns_no_json():
    return object()


@task
def session_of_thread() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@task
async def session_of_coroutine() -> int:
    return await sync_to_async(session_of_thread.call)()


@task
def positions(*args, **kwargs):
    return [list(args), kwargs]


@dataclass
class Parcel:
    weight: Decimal
    sent_on: date


@task(takes_context=True)
def ship(context, parcel: Parcel, id: UUID, at: datetime | None = None) -> dict:
    assert isinstance(parcel, Parcel) and isinstance(id, UUID)
    return {"id": id, "on": parcel.sent_on.year, "weight": parcel.weight * 2, "at": at and at.isoformat()}


@task_of_timeball(isolate=Isolate(runs_per_child=1), timeout="1m", grace="5s")
def process_of_task() -> int:
    return os.getpid()


hooked = []


@tb.around_run
def note_run(run):
    hooked.append(["enter", run.handler, run.meta.get("tenant")])
    yield
    hooked.append(["leave", str(run.outcome)])


@tb.before_enqueue
def add_tenant(enqueue):
    if enqueue.handler.endswith("hooks_around"):
        enqueue.meta["tenant"] = f"acme {enqueue.arguments}"


@task
def hooks_around(number: int):
    return hooked[-1:]


def open_session():
    hooked.append(["open"])
    yield "session"
    hooked.append(["close"])


@task(takes_context=True)
def depends(context, session: Annotated[str, Depends(open_session)], number: int) -> list:
    return [session, context.attempt, number]


@task
async def depends_in_coroutine(number: int, session: Annotated[str, Depends(open_session)]) -> list:
    return [session, number]


@task_of_timeball(
    key="stock", limit_key="shelf", max_running=1, retries=4, expires="1h", meta={"of": "stock"}, retry_on=OSError,
    no_retry=TimeoutError, priority=20,
)
def stock(number: int) -> int:
    return number


@task(takes_context=True)
def bill(context, order: Order | None): ...


@task
def wait_for_a_while():
    while not current.cancelled:
        time.sleep(0.01)


@task_of_timeball(retry_on=ConnectionError)
def only_the_network():
    raise LookupError("not the network")


@task_of_timeball(no_retry=LookupError)
def never_again():
    raise LookupError("never again")


followers = []


@tb.handler
def note_follower(result: list) -> None:
    followers.append(result)


@tb.handler(queue="mail")
def send_invoice(order_id: int) -> int:
    return order_id


@tb.handler
def name_of_order(order_id: int) -> str:
    return Order.objects.get(pk=order_id).to


@tb.handler
async def name_of_order_in_coroutine(order_id: int) -> str:
    return (await Order.objects.aget(pk=order_id)).to


@tb.handler
def add_order(to: str) -> int:
    if to == "nobody":
        Order.objects.create(to=to)
        raise LookupError(to)
    return Order.objects.create(to=to).pk
"""


def write_project(folder: Path) -> None:
    """The files of the project: those of the guide, and those of `startproject`."""
    files = {block["path"]: block["code"] for block in _BLOCK.finditer(GUIDE.read_text(encoding="utf-8"))}
    files["bookshop/settings.py"] += _SETTINGS
    files["bookshop/tasks.py"] += _MORE_TASKS
    files |= {"bookshop/models.py": _MODELS, "bookshop/__init__.py": "", "bookshop/nightly/__init__.py": ""}
    for path, code in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code.replace("from django.tasks import", f"from {tasks_are()} import"), encoding="utf-8")


def tasks_are() -> str:
    """The module of the task framework in this version of Django."""
    return "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def environment_of(database: FreshDatabase) -> dict[str, str]:
    """The variables by which the settings of the project find a database."""
    parameters = conninfo_to_dict(database.dsn)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    variables = {f"TEST_DB_{names[name]}": str(value) for name, value in parameters.items() if name in names}
    return variables | {"DJANGO_SETTINGS_MODULE": "bookshop.settings", "TASKS_ARE": tasks_are()}


@pytest.fixture(scope="session")
def project_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, written once."""
    folder = tmp_path_factory.mktemp("django")
    write_project(folder)
    return folder


@pytest.fixture(scope="session")
def django_is_set_up(project_folder: Path) -> None:
    """Django, set up in this process, which is possible only once."""
    sys.path.insert(0, str(project_folder))
    os.environ |= {"DJANGO_SETTINGS_MODULE": "bookshop.settings", "TASKS_ARE": tasks_are()}
    django.setup()


@pytest.fixture
def shop(django_is_set_up: None, fresh_database: FreshDatabase) -> Iterator[Any]:
    """The Timeball of the project, with the test's database, to which Django is switched as by its own test runner."""
    from bookshop.models import Order

    from timeball.contrib.django import tb

    variables = environment_of(fresh_database)
    connections["default"].settings_dict |= {
        name.removeprefix("TEST_DB_"): value for name, value in variables.items() if name.startswith("TEST_DB_")
    }
    with connections["default"].schema_editor() as editor:
        editor.create_model(Order)
    with tb.redirected(load_settings(database_url=fresh_database.dsn, migrate=False), Env()):
        yield tb
    connections.close_all()


@pytest.fixture
def worker(shop: Any) -> Callable[[], AbstractContextManager[None]]:
    """Runs a worker for the project: `with worker(): ...`."""
    return lambda: running_node(shop, shop.settings)
