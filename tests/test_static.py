"""What can be seen without running: time, chance and SQL come in only where they may."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from timeball.store.migrate import all_migrations
from timeball.store.statements import all_statements

SOURCE = Path(__file__).parent.parent / "src" / "timeball"
# The embedded server waits for processes of the operating system, with the operating system's clock;
# keys must be unguessable whatever seed a test has chosen.
EXEMPT = ("store/embedded/", "store/keys.py")
FORBIDDEN = {
    "time": {"time", "monotonic", "time_ns", "monotonic_ns", "sleep", "perf_counter"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "uuid": {"uuid1", "uuid4", "uuid7"},
    "random": {"random", "randint", "choice", "uniform", "getrandbits", "shuffle", "Random", "SystemRandom"},
    "secrets": {"token_bytes", "token_hex", "randbits"},
    "os": {"urandom"},
}
FORBIDDEN_MODULES = {"time", "random", "secrets"}


def modules() -> list[Path]:
    found = [path for room in ("domain", "engine", "store") for path in sorted((SOURCE / room).rglob("*.py"))]
    return [path for path in found if not any(part in path.as_posix() for part in EXEMPT)]


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_time_and_chance_come_only_through_the_env(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    found = [
        f"{node.value.id}.{node.attr} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in FORBIDDEN.get(node.value.id, ())
    ]
    found += [
        f"import of {alias.name} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in FORBIDDEN_MODULES
    ]
    found += [
        f"import from {node.module} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_MODULES
    ]

    assert found == []


def test_the_rule_finds_what_it_forbids() -> None:
    tree = ast.parse("import time\nfrom datetime import datetime\nx = time.time()\ny = datetime.now()")

    names = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in FORBIDDEN.get(node.value.id, ())
    }

    assert names == {"time.time", "datetime.now"}


def test_every_statement_is_used() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))

    unused = [name for name in all_statements() if f'"{name}"' not in sources]

    assert unused == []


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
    while number > 0 and lines[number - 1].startswith("CREATE INDEX"):
        number -= 1
    return number > 0 and lines[number - 1].startswith("--")


def test_sql_is_glued_together_nowhere_but_where_it_must_be() -> None:
    allowed = {"store/listing.py", "store/migrate.py", "store/history.py", "store/postgres.py", "store/hinter.py"}
    allowed |= {"store/database.py", "store/verify.py", "engine/heartbeat.py", "engine/listener.py"}
    verbs = re.compile(r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH)\s", re.MULTILINE)
    found = []
    for path in modules():
        name = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if name not in allowed and any(verbs.search(text) for text in texts):
            found.append(name)

    assert found == []
