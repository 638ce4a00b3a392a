"""Named statements, loaded from the files in `store/sql`.

A statement begins with `-- name: some_name`. Its parameters are named (`:limit`); drivers get them numbered (asyncpg) or as `%(limit)s`
(psycopg). What several statements of a file have in common is a fragment, which begins with `-- fragment: some_name` and takes the place
of `{some_name}` in the statements after it.

The columns of a job's fields are not written out. A statement names a list of them, which the loader takes from the table of the fields:
`{job_columns}` is the columns, `{new.job_columns}` the same of a row called *new*, `{:plain_columns}` parameters of their types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from timeball.domain.job import RETRY_FIELDS
from timeball.domain.job_fields import SPEC_FIELDS, JobField, Section

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_HEADING = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"\{([a-z_]+)\}")
# A colon that is not part of a cast (`::`) and is followed by a name.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
# Files of statements that work waits for: each touches a few rows by an index, and returns at once while the database is healthy.
_FAST_FILES = frozenset({"claiming", "finishing", "promotion", "keys", "limits", "nodes", "sessions"})
_FAST_ELSEWHERE = frozenset(
    {"enqueue_one", "find_jobs", "find_job_by_name", "find_execution", "live_keys", "log_lines_of", "write_log_lines"}
)
# Statements of those files that may read a whole queue, or the whole schedule.
_SLOW = frozenset(
    {
        "mark_queue_limited",
        "tend_queues",
        "occurrences_of_other_tzdata",
        "request_stop_of_jobs",
        "forget_old_requests",
        "forget_old_sessions",
    }
)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_COLUMN_LIST = re.compile(r"\{(:|\w+\.|)([a-z]+_columns)\}")
# `job_columns` has neither payload nor scheduled_at: statements write these in their own ways.
_COLUMN_LISTS = {
    "job_columns": [line for name, line in SPEC_FIELDS.items() if name not in ("payload", "scheduled_at")],
    "plain_columns": [line for line in SPEC_FIELDS.values() if line.is_plain],
    "timing_columns": [line for line in SPEC_FIELDS.values() if line.section is Section.WHEN],
    "retry_columns": [SPEC_FIELDS[name] for name in RETRY_FIELDS],
}


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
    fragments: dict[str, str] = {}
    statements: dict[str, Statement] = {}
    pieces = _HEADING.split(source)[1:]
    for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if name in statements or name in fragments:
            raise ValueError(f"{'statement' if kind == 'name' else kind} {name} is written twice")
        text = _COLUMN_LIST.sub(_columns, _COMMENT.sub("", body)).strip().removesuffix(";")
        if kind == "fragment":
            fragments[name] = text
        else:
            text = _FRAGMENT.sub(lambda match: fragments.get(match[1], match[0]), text)
            statements[name] = Statement(name, text, tuple(dict.fromkeys(_PARAMETER.findall(text))))
    return statements


def _columns(match: re.Match[str]) -> str:
    prefix, name = match.groups()
    if name not in _COLUMN_LISTS:
        raise ValueError(f"{match[0]} is not a list of columns, expected one of {', '.join(_COLUMN_LISTS)}")
    return ", ".join(f"{prefix}{line.column}{_cast(line) if prefix == ':' else ''}" for line in _COLUMN_LISTS[name])


def _cast(line: JobField) -> str:
    # A connection of the caller may have a codec for json, which would encode the text a second time.
    return "::text::jsonb" if line.column_type == "jsonb" else f"::{line.column_type}"


@cache
def all_statements() -> dict[str, Statement]:
    """Every statement of the store, by name."""
    statements: dict[str, Statement] = {}
    for source in sorted((files("timeball.store") / "sql").iterdir(), key=lambda path: path.name):
        for name, statement in parse(source.read_text(encoding="utf-8")).items():
            if name in statements:
                raise ValueError(f"statement {name} is written in two files")
            statements[name] = statement
    return statements


@cache
def fast_statements() -> frozenset[str]:
    """The names of the statements that return at once unless something is wrong."""
    sources = [files("timeball.store") / "sql" / f"{name}.sql" for name in sorted(_FAST_FILES)]
    names = {name for source in sources for name in _NAME.findall(source.read_text(encoding="utf-8"))}
    return frozenset((names | _FAST_ELSEWHERE) - _SLOW)


@cache
def numbered(name: str) -> tuple[str, tuple[str, ...]]:
    """The numbered text of a statement, and its parameters in the order of their numbers. Made on first use, because a node uses few."""
    statement = all_statements()[name]
    return statement.numbered(), statement.parameters
