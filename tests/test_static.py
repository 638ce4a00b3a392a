"""What can be seen without running: time, chance and SQL come in only where they may, and a class name means one thing.

Exceptions are listed, each with its reason; one that is no longer needed has to go.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from timeball.store.db.migrate import all_migrations
from timeball.store.db.statements import all_statements

SOURCE = Path(__file__).parent.parent / "src" / "timeball"

# Below these folders everything that is not a function of its arguments comes through `Env`.
PURE = ("domain", "engine", "store")
MAY_HAVE_TIME_OR_CHANCE = {
    "store/embedded/server.py": "waits for processes of the operating system, by the operating system's clock",
    "store/access.py": "keys and sessions must be unguessable, whatever seed a test has chosen",
}
FORBIDDEN_MODULES = {"time", "random", "secrets"}
FORBIDDEN_NAMES = {
    "uuid": {"uuid1", "uuid4", "uuid6", "uuid7", "getnode"},
    "os": {"urandom", "getrandom", "times"},
    "datetime": {"now", "utcnow", "today", "fromtimestamp"},
    "date": {"today"},
    "loop": {"time"},
}

# SQL is in `.sql` files. Where it cannot be:
MAY_SPEAK_SQL = {
    "store/search/listing.py": "the audit, by whom and of what",
    "store/search/executions.py": "the filtered lists of executions, composed table by table",
    "store/search/jobs.py": "the filtered lists of jobs and what leads to them",
    "store/search/groups.py": "the list of groups, by the index of the open ones or by that of all",
    "store/search/query.py": "runs, counts and explains the composed queries, and has their conditions",
    "store/history.py": "partitions bear the day in their name",
    "store/db/migrate.py": "asks which migrations have been applied, before there is a schema",
    "store/store.py": "counts the shards when it opens",
    "store/db/database.py": "sends a notification",
    "engine/node.py": "probes its connection",
    "testing/environment.py": "tells the server of a test session to read its configuration again",
}
SQL = re.compile(
    r"\b(SELECT\s.+|INSERT\s+INTO\s|UPDATE\s+\w+(\.\w+)?\s+SET\s|DELETE\s+FROM\s|LOCK\s+TABLE\s|(ALTER|CREATE|DROP)\s+(TABLE|INDEX)\s)",
    re.DOTALL,
)


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def modules(*folders: str) -> list[Path]:
    roots = [SOURCE / folder for folder in folders] or [SOURCE]
    return sorted(path for root in roots for path in root.rglob("*.py"))


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


# time and chance


def forbidden_in(source: str) -> list[str]:
    """Where a source reads a clock or draws lots, whatever it calls the module."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            taken = FORBIDDEN_NAMES.get(node.module or "", set())
            found += [(node, f"{node.module}.{alias.name}") for alias in node.names if alias.name in taken]
            found += [(node, node.module)] if node.module in FORBIDDEN_MODULES else []
        elif isinstance(node, ast.Attribute):
            owner = _last_name(node.value)
            owner = aliases.get(owner, owner).rpartition(".")[2]
            found += [(node, f"{owner}.{node.attr}")] if node.attr in FORBIDDEN_NAMES.get(owner, set()) else []
    return [f"{what} in line {node.lineno}" for node, what in found]


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func).replace("get_running_loop", "loop")
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@each(modules(*PURE))
def test_time_and_chance_come_only_through_the_env(path: Path) -> None:
    found = forbidden_in(path.read_text(encoding="utf-8"))

    if name_of(path) in MAY_HAVE_TIME_OR_CHANCE:
        assert found, "this exception is not needed any more"
    else:
        assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import time as t",
        "from time import monotonic",
        "import random",
        "from secrets import token_hex",
        "from datetime import datetime\ndatetime.now()",
        "from datetime import datetime as d\nd.utcnow()",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "import datetime as dt\ndt.datetime.now()",
        "import datetime\ndatetime.date.today()",
        "from datetime import date\ndate.today()",
        "import uuid\nuuid.uuid4()",
        "from uuid import UUID, uuid4",
        "import uuid as u\nu.uuid1()",
        "import os\nos.urandom(8)",
        "from os import urandom",
        "import asyncio\nasyncio.get_running_loop().time()",
    ],
)
def test_no_other_source_of_time_or_chance_goes_unseen(source: str) -> None:
    assert forbidden_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime, timedelta\ndatetime(2026, 1, 1, tzinfo=UTC) + timedelta(1)",
        "from uuid import UUID\nUUID(int=1)",
        "class A:\n    def f(self):\n        return self.env.clock.now()",
        "def f(env):\n    return env.random.random()",
        "import os\nos.environ.get('A')",
    ],
)
def test_what_comes_through_the_env_may_be_used(source: str) -> None:
    assert forbidden_in(source) == []


# SQL


def sql_in(source: str) -> list[str]:
    """The texts of a source that are statements: not its docstrings, not its comments."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    return [text for text in texts if SQL.search(text)]


@each(modules())
def test_sql_lives_in_sql_files(path: Path) -> None:
    found = sql_in(path.read_text(encoding="utf-8"))

    if name_of(path) in MAY_SPEAK_SQL:
        assert found, "this exception is not needed any more"
    else:
        assert found == []


def test_statements_in_a_source_do_not_go_unseen() -> None:
    assert sql_in('x = f"SELECT a FROM {table}"')
    assert sql_in('run("DELETE FROM timeball.due")')
    assert sql_in('run("""\n    UPDATE timeball.due\n    SET run_at = now()\n""")')
    assert not sql_in('"""SELECT it by hand: prose."""\nx = "Select a job"')


def test_every_statement_is_used() -> None:
    used = {
        node.value
        for path in modules("store")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert sorted(all_statements().keys() - used) == []


@pytest.mark.parametrize("name", sorted(all_statements()))
def test_statements_take_the_time_from_whoever_runs_them(name: str) -> None:
    """`now()` alone would be deaf to the virtual clock; the clock itself is read on purpose where nodes learn it, or after a lock."""
    text = all_statements()[name].text
    bare = re.sub(r"coalesce\([^()]*:now,\s*now\(\)\)", "", text)

    assert "now()" not in bare
    assert "current_timestamp" not in bare.lower()
    assert name in ("read_clock", "renew_lease", "add_freeze", "end_freeze") or "clock_timestamp" not in bare


# Rows are deleted by their place (ctid) once they have been locked there. Where they need not be:
MAY_DELETE_UNLOCKED = {
    "trim_rollups": "a minute that is old stays old, whatever is counted into it meanwhile",
}
LOCKS = ("FOR UPDATE", "timeball.lock_ready(")
DELETED_BY_PLACE = re.compile(r"\bctid = ANY \((?:ARRAY)?\((SELECT.*?)\)(?:::tid\[\])?\)", re.DOTALL)


def unlocked_sources(text: str) -> list[str]:
    """The parts of a statement that name the places of rows to be deleted, and do not lock them."""
    sources = [source for places in DELETED_BY_PLACE.findall(text) for source in re.findall(r"FROM (\w+)", places)]
    return [source for source in sources if not _is_locked(text, source)]


def _is_locked(text: str, name: str) -> bool:
    """Whether a part locks its rows, or takes them only from parts that do."""
    part = _part(text, name)
    sources = re.findall(r"FROM (\w+)", part)
    return any(lock in part for lock in LOCKS) or (bool(sources) and all(_is_locked(text, each) for each in sources))


def _part(text: str, name: str) -> str:
    """What stands between the brackets of `name AS MATERIALIZED (...)`: its end is the first bracket at the edge."""
    found = re.search(rf"^(?:WITH )?{name} AS MATERIALIZED \(\n(.*?)^\)", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("name", [name for name, it in all_statements().items() if DELETED_BY_PLACE.search(it.text)])
def test_what_is_deleted_by_its_place_was_locked_there(name: str) -> None:
    """PostgreSQL before its releases of autumn 2025 looks at nothing again once it has waited for such a row: it deletes what changed."""
    found = unlocked_sources(all_statements()[name].text)

    if name in MAY_DELETE_UNLOCKED:
        assert found, "this exception is not needed any more"
    else:
        assert found == []


def test_a_delete_by_place_does_not_go_unseen() -> None:
    source = "WITH a AS MATERIALIZED (\n    SELECT ctid AS tid\n    FROM t {lock}\n)\n"
    delete = "DELETE FROM t\nWHERE t.ctid = ANY (ARRAY(SELECT a.tid FROM a))"

    assert unlocked_sources(source.format(lock="") + delete) == ["a"]
    assert unlocked_sources(source.format(lock="FOR UPDATE") + delete) == []
    through = ",\nb AS MATERIALIZED (\n    SELECT tid\n    FROM a\n)\n" + delete.replace("a.tid FROM a", "b.tid FROM b")
    assert unlocked_sources(source.format(lock="") + through) == ["b"]
    assert unlocked_sources(source.format(lock="FOR UPDATE") + through) == []


# the schema


def test_every_index_says_who_needs_it() -> None:
    silent = []
    for migration in all_migrations():
        lines = migration.text.splitlines()
        for number, line in enumerate(lines):
            match = re.match(r"CREATE (?:UNIQUE )?INDEX (\w+)", line)
            if match and not _is_explained(lines, number):
                silent.append(match[1])

    assert silent == []


def _is_explained(lines: list[str], number: int) -> bool:
    """A comment stands above the index, or above the group of indexes it belongs to."""
    while number > 0 and re.match(r"CREATE (UNIQUE )?INDEX", lines[number - 1]):
        number -= 1
    return number > 0 and lines[number - 1].startswith("--")


def test_every_table_says_what_it_is_for() -> None:
    silent = []
    for migration in all_migrations():
        lines = migration.text.splitlines()
        for number, line in enumerate(lines):
            match = re.match(r"CREATE TABLE timeball\.(\w+) \(", line)
            if match and not lines[number - 1].startswith("--"):
                silent.append(match[1])

    assert silent == []


def test_migrations_are_numbered_without_gaps_and_no_number_is_taken_twice() -> None:
    """Two changes that were made at the same time may both have taken the next number."""
    numbers = [migration.number for migration in all_migrations()]

    assert numbers == list(range(1, len(numbers) + 1))


# names


def classes_by_name(sources: dict[str, str]) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for file, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    return homes


def test_no_two_classes_have_the_same_name() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}

    assert {name: homes for name, homes in classes_by_name(sources).items() if len(homes) > 1} == {}


def test_a_class_name_used_twice_does_not_go_unseen() -> None:
    homes = classes_by_name({"a.py": "class Run: ...", "b.py": "def f():\n    class Run: ..."})

    assert homes == {"Run": ["a.py:1", "b.py:2"]}
