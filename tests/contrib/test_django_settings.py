"""The settings of a Django project: the database of its tasks, and the messages of `manage.py check`."""

from __future__ import annotations

import ast
import os
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.utils import ConnectionHandler

from timeball.contrib.django import app
from timeball.contrib.django.app import NOT_SET, TaskDatabase, find_task_database
from timeball.contrib.django.options import UNSET, TaskCallOptions, TaskOptions
from timeball.errors import InvalidInput
from timeball.sdk.options import EnqueueOptions, HandlerDeclaration
from timeball.store.db.url import DatabaseUrl, Host

POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "ana",
    "PASSWORD": "p@ss/word",
    "HOST": "db.example.com",
    "PORT": "5433",
}
URL = "postgresql://ana:p%40ss%2Fword@db.example.com:5433/shop"
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.fixture
def databases(django_is_set_up: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the databases of Django: `databases(default=...)`."""

    def configure(**settings: Any) -> None:
        monkeypatch.setattr(app, "connections", ConnectionHandler(settings))

    return configure


def test_without_options_tasks_are_kept_in_the_default_database(databases: Any) -> None:
    databases(default=POSTGRES)

    assert find_task_database([NOT_SET]) == TaskDatabase(URL, "default")


def test_a_default_database_that_is_not_postgresql_is_not_used(databases: Any) -> None:
    databases(default=SQLITE)

    assert find_task_database([NOT_SET]) == TaskDatabase(None, None)


@pytest.mark.parametrize(
    ("url", "alias"),
    [
        ("postgresql://other@db.example.com:5433/shop", "default"),
        ("postgresql://ana@db.example.com:5433/other", None),
        ("postgresql://ana@db.example.com/shop", None),
        ("postgresql://ana@elsewhere.example.com:5433/shop", None),
    ],
)
def test_the_setting_of_timeball_goes_before_the_default_database(
    databases: Any, monkeypatch: pytest.MonkeyPatch, url: str, alias: str | None
) -> None:
    databases(default=POSTGRES)
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", url)

    assert find_task_database([NOT_SET]) == TaskDatabase(url, alias)


def test_options_name_the_database(databases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    databases(default=SQLITE, queue=POSTGRES)
    assert find_task_database(["queue", "queue"]) == TaskDatabase(URL, "queue")
    assert find_task_database([None]) == TaskDatabase(None, None)

    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://pooler:6432/shop")
    assert find_task_database(["queue"]) == TaskDatabase("postgresql://pooler:6432/shop", "queue")
    assert find_task_database([None]) == TaskDatabase("postgresql://pooler:6432/shop", None)


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({"HOST": "/run/pg", "PORT": "5433"}, "postgresql://ana:p%40ss%2Fword@/shop?host=%2Frun%2Fpg&port=5433"),
        ({"HOST": "::1", "PORT": 5432, "PASSWORD": ""}, "postgresql://ana@[::1]:5432/shop"),
        ({"HOST": "", "PORT": "", "USER": ""}, "postgresql:///shop"),
        ({"OPTIONS": {"sslmode": "require", "pool": True}}, f"{URL}?sslmode=require"),
        (
            {"HOST": "a,b", "PORT": "1,2", "PASSWORD": ""},
            "postgresql://ana@/shop?host=a,b&port=1,2",
        ),
        (
            {"OPTIONS": {"options": "-c work_mem=5MB", "connect_timeout": 5, "isolation_level": 2}},
            f"{URL}?connect_timeout=5&options=-c%20work_mem%3D5MB",
        ),
        (
            {"NAME": "", "HOST": "", "PORT": "", "USER": "", "OPTIONS": {"service": "shop"}},
            "postgresql:///?service=shop",
        ),
    ],
)
def test_django_database_settings_become_a_url(databases: Any, changes: dict[str, Any], url: str) -> None:
    databases(default=POSTGRES | changes)

    assert find_task_database([NOT_SET]).url == url


def test_several_hosts_and_ports_are_kept(databases: Any) -> None:
    databases(default=POSTGRES | {"HOST": "a,b", "PORT": "1,2"})

    assert DatabaseUrl.parse(str(find_task_database([NOT_SET]).url), {}).hosts() == [Host("a", 1), Host("b", 2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["queue", NOT_SET], "several databases, expected one and the same: 'queue', nothing"),
        (["moon"], "'moon', expected None or one of DATABASES: 'default', 'queue'"),
        ([["queue"]], "expected None or one of DATABASES"),
        (["default"], "'default', which is sqlite, expected a PostgreSQL"),
    ],
)
def test_a_wrong_database_option_is_refused(databases: Any, options: list[Any], problem: str) -> None:
    databases(default=SQLITE, queue=POSTGRES)

    with pytest.raises(InvalidInput, match=problem):
        find_task_database(options)


@pytest.fixture
def check(django_is_set_up: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The messages of the checks for a backend with these OPTIONS."""
    from timeball.contrib.django import backend
    from timeball.contrib.django.app import DjangoTimeball

    def look(**options: Any) -> list[tuple[str, str]]:
        checked = backend.Backend("default", {"OPTIONS": options})
        fresh = DjangoTimeball()
        monkeypatch.setattr("timeball.contrib.django.app.own_backends", lambda: [checked])
        monkeypatch.setattr(backend, "tb", fresh)
        return [(message.id, str(message.msg)) for message in checked.check()]

    return look


def test_checks_pass_for_right_settings(check: Any) -> None:
    assert check() == []
    assert check(database="default", retries=5, modules=["bookshop.checkout"]) == []
    assert check(database=None) == []


def test_checks_report_wrong_options(check: Any) -> None:
    ((code, message),) = check(retry=5)
    assert (code, "OPTIONS has no option 'retry'; known are " in message) == ("timeball.E001", True)

    ((code, message),) = check(database="moon")
    assert (code, "expected None or one of DATABASES" in message) == ("timeball.E001", True)


def test_checks_report_that_a_rollback_does_not_undo_an_enqueue(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://elsewhere/shop")

    ((code, message),) = check()

    assert code == "timeball.I001"
    assert "the database of TIMEBALL_DATABASE_URL, which is not a database of Django's" in message
    assert check(database=None) == []


def test_a_worker_without_settings_raises_with_a_hint(django_is_set_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.apps, "ready", False)
    monkeypatch.setattr(app, "django_settings", LazySettings())
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")

    with pytest.raises(InvalidInput, match="DJANGO_SETTINGS_MODULE is not set") as error:
        _ = app.DjangoTimeball().settings

    assert "DJANGO_SETTINGS_MODULE=project.settings timeball worker" in str(error.value.hint)


def test_a_missing_settings_module_raises_with_a_hint(django_is_set_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_up() -> None:
        import_module(os.environ["DJANGO_SETTINGS_MODULE"])

    monkeypatch.setattr(app.apps, "ready", False)
    monkeypatch.setattr(app.django, "setup", set_up)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "moon.settings")

    with pytest.raises(InvalidInput, match="there is no module 'moon'"):
        _ = app.DjangoTimeball().settings


def test_the_task_class_of_django_need_not_be_generic() -> None:
    """The class of the backport is generic, and most tests run with the backport."""
    sources = Path(app.__file__).parent.glob("*.py")
    trees = [ast.parse(path.read_text()) for path in sources]
    for_type_checkers = {
        inner for tree in trees for node in tree.body if isinstance(node, ast.If) for inner in ast.walk(node)
    }
    classes = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node not in for_type_checkers
    ]

    generic = [base.value.id for definition in classes for base in definition.bases if isinstance(base, ast.Subscript)]

    assert not {"Task", "TaskResult", "AnyTask"} & set(generic)


def test_the_options_of_a_task_are_those_of_a_handler() -> None:
    of_call = EnqueueOptions.__optional_keys__ - {
        *("queue", "priority", "delay", "at", "timezone"),  # Django has its own
        *("connection", "unchecked"),
    }

    assert of_call == TaskCallOptions.__optional_keys__
    assert (HandlerDeclaration.__optional_keys__ | of_call) - {"name", "queue", "priority"} == (
        TaskOptions.__optional_keys__
    )


def test_an_option_that_is_not_given_stays_so_when_a_task_is_pickled() -> None:
    again = pickle.loads(pickle.dumps(UNSET))

    assert again is UNSET
