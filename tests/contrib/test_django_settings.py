"""What is read of the settings of a Django project: where its tasks are kept, and what `manage.py check` says."""

from __future__ import annotations

import ast
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.utils import ConnectionHandler

from timeball.contrib.django import app
from timeball.contrib.django.app import NOT_SET, TaskDatabase, find_task_database
from timeball.errors import InvalidInput
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
    """Has Django know these databases: `databases(default=...)`."""

    def know(**given: Any) -> None:
        monkeypatch.setattr(app, "connections", ConnectionHandler(given))

    return know


def test_django_s_own_database_is_the_home_of_those_who_say_nothing(databases: Any) -> None:
    databases(default=POSTGRES)

    assert find_task_database([NOT_SET]) == TaskDatabase(URL, "default")


def test_a_database_of_another_kind_is_none(databases: Any) -> None:
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
def test_timeball_s_own_setting_goes_before(
    databases: Any, monkeypatch: pytest.MonkeyPatch, url: str, alias: str | None
) -> None:
    databases(default=POSTGRES)
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", url)

    assert find_task_database([NOT_SET]) == TaskDatabase(url, alias)


def test_the_options_can_say_it_outright(databases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_settings_of_django_s_become_a_url(databases: Any, changes: dict[str, Any], url: str) -> None:
    databases(default=POSTGRES | changes)

    assert find_task_database([NOT_SET]).url == url


def test_several_hosts_and_ports_of_django_s_are_several_for_timeball(databases: Any) -> None:
    databases(default=POSTGRES | {"HOST": "a,b", "PORT": "1,2"})

    assert DatabaseUrl.parse(str(find_task_database([NOT_SET]).url), {}).hosts() == [Host("a", 1), Host("b", 2)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["queue", NOT_SET], "several databases, expected one and the same: 'queue', nothing"),
        (["moon"], "'moon', expected None or one of DATABASES: 'default', 'queue'"),
        ([["queue"]], "expected None or one of DATABASES"),
        (["default"], "'default', which is sqlite, expected a PostgreSQL"),
    ],
)
def test_what_cannot_be_a_home_is_refused(databases: Any, said: list[Any], why: str) -> None:
    databases(default=SQLITE, queue=POSTGRES)

    with pytest.raises(InvalidInput, match=why):
        find_task_database(said)


@pytest.fixture
def check(django_is_set_up: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the checks say of a backend with these OPTIONS."""
    from timeball.contrib.django import backend
    from timeball.contrib.django.app import DjangoTimeball

    def look(**options: Any) -> list[tuple[str, str]]:
        made = backend.Backend("default", {"OPTIONS": options})
        fresh = DjangoTimeball()
        monkeypatch.setattr("timeball.contrib.django.app.own_backends", lambda: [made])
        monkeypatch.setattr(backend, "tb", fresh)
        return [(message.id, str(message.msg)) for message in made.check()]

    return look


def test_checks_are_silent_when_all_is_well(check: Any) -> None:
    assert check() == []
    assert check(database="default", retries=5, modules=["bookshop.checkout"]) == []
    assert check(database=None) == []


def test_checks_name_what_cannot_be(check: Any) -> None:
    ((code, words),) = check(retry=5)
    assert (code, "OPTIONS has no word 'retry'; known are" in words) == ("timeball.E001", True)

    ((code, words),) = check(database="moon")
    assert (code, "expected None or one of DATABASES" in words) == ("timeball.E001", True)


def test_checks_tell_when_a_rollback_does_not_take_a_task_back(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://elsewhere/shop")

    ((code, words),) = check()

    assert code == "timeball.I001"
    assert "the database of TIMEBALL_DATABASE_URL, which is no database of Django's" in words
    assert check(database=None) == []


def test_without_settings_a_worker_is_told_what_is_missing(
    django_is_set_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.apps, "ready", False)
    monkeypatch.setattr(app, "django_settings", LazySettings())
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")

    with pytest.raises(InvalidInput, match="DJANGO_SETTINGS_MODULE is not set") as error:
        _ = app.DjangoTimeball().settings

    assert "DJANGO_SETTINGS_MODULE=project.settings timeball worker" in str(error.value.hint)


def test_settings_that_are_not_there_are_told_of_in_a_sentence(
    django_is_set_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_up() -> None:
        import_module(os.environ["DJANGO_SETTINGS_MODULE"])

    monkeypatch.setattr(app.apps, "ready", False)
    monkeypatch.setattr(app.django, "setup", set_up)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "moon.settings")

    with pytest.raises(InvalidInput, match="there is no module 'moon'"):
        _ = app.DjangoTimeball().settings


def test_django_s_own_classes_are_not_taken_for_generic_ones() -> None:
    """Those of the backport are, and it is the backport that most tests run with."""
    sources = Path(app.__file__).parent.glob("*.py")
    classes = [
        node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]

    generic = [base.value.id for made in classes for base in made.bases if isinstance(base, ast.Subscript)]

    assert not {"Task", "TaskResult", "AnyTask"} & set(generic)
