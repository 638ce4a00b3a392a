"""Named statements, loaded from the `.sql` files beside this module.

A statement begins with `-- name: some_name`; its parameters are named (`:limit`) and are rendered in the style of whoever runs it:
numbered for asyncpg, `%(limit)s` for psycopg.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
# A colon that is not part of a cast (`::`) and is followed by a name.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
# Work waits for these: they touch a few rows by an index, and answer at once while the database is well.
_FAST_FILES = frozenset({"claiming", "finishing", "promotion", "keys", "limits", "nodes", "sessions", "tickets"})
_FAST_ELSEWHERE = frozenset(
    {"enqueue_one", "find_jobs", "find_job_by_name", "find_execution", "live_keys", "log_lines_of", "write_log_lines"}
)
# Those beside them that may have a whole queue, or all of the schedule, to go through.
_SLOW = frozenset(
    {
        "mark_queue_limited",
        "occurrences_of_other_tzdata",
        "request_stop_of_jobs",
        "forget_old_requests",
        "forget_old_sessions",
    }
)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its name, its text as written, and its parameters in the order of their first use."""

    name: str
    text: str
    parameters: tuple[str, ...]

    def numbered(self) -> str:
        """The text with `$1`, `$2`, ... as PostgreSQL's protocol wants it."""
        places = {name: f"${number}" for number, name in enumerate(self.parameters, start=1)}
        return _PARAMETER.sub(lambda match: places[match.group(1)], self.text)

    def pyformat(self) -> str:
        """The text with `%(name)s`, as psycopg wants it."""
        return _PARAMETER.sub(lambda match: f"%({match.group(1)})s", self.text.replace("%", "%%"))


def parse(source: str) -> dict[str, Statement]:
    """The statements of one file, by name."""
    found: dict[str, Statement] = {}
    pieces = _NAME.split(source)[1:]
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        if name in found:
            raise ValueError(f"statement {name} is written twice")
        text = _COMMENT.sub("", body).strip().removesuffix(";")
        found[name] = Statement(name, text, tuple(dict.fromkeys(_PARAMETER.findall(text))))
    return found


@cache
def all_statements() -> dict[str, Statement]:
    """Every statement of the store, by name."""
    found: dict[str, Statement] = {}
    for source in sorted((files("timeball.store") / "sql").iterdir(), key=lambda path: path.name):
        for name, statement in parse(source.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"statement {name} is written in two files")
            found[name] = statement
    return found


@cache
def fast_statements() -> frozenset[str]:
    """The names of the statements that answer at once, or something is wrong."""
    sources = [files("timeball.store") / "sql" / f"{name}.sql" for name in sorted(_FAST_FILES)]
    names = {name for source in sources for name in _NAME.findall(source.read_text(encoding="utf-8"))}
    return frozenset((names | _FAST_ELSEWHERE) - _SLOW)


@cache
def numbered(name: str) -> tuple[str, tuple[str, ...]]:
    """What a driver gets of a statement: its text, and which parameter is which number. Made when asked for: a node uses few."""
    statement = all_statements()[name]
    return statement.numbered(), statement.parameters
