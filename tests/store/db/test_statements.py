"""Statements are loaded from files by name, and rendered for each driver."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from timeball.store.db.statements import all_statements, parse
from timeball.store.store import Store

SOURCE = """-- A word about the file.

-- name: first
-- What it does, at 12:30 with :no parameters.
SELECT :b::text, a::integer, :a, x[1:2]
FROM t -- 100 %
WHERE a = :b;

-- name: second
SELECT 1;
"""


def test_a_file_holds_statements_by_name() -> None:
    statements = parse(SOURCE)

    assert list(statements) == ["first", "second"]
    assert statements["second"].text == "SELECT 1"
    assert statements["second"].parameters == ()


def test_parameters_are_numbered_by_their_first_use() -> None:
    first = parse(SOURCE)["first"]

    assert first.parameters == ("b", "a")
    assert first.numbered() == "SELECT $1::text, a::integer, $2, x[1:2]\nFROM t -- 100 %\nWHERE a = $1"


def test_psycopg_gets_names_and_doubled_percent_signs() -> None:
    first = parse(SOURCE)["first"]

    expected = "SELECT %(b)s::text, a::integer, %(a)s, x[1:2]\nFROM t -- 100 %%\nWHERE a = %(b)s"
    assert first.pyformat() == expected


def test_a_fragment_takes_its_place_in_the_statements_of_its_file() -> None:
    source = (
        "-- fragment: condition\n-- Why.\nid = :id\n\n-- name: find\nSELECT 1\nWHERE {condition}\n  AND '{}' <> :b;\n"
    )

    (find,) = parse(source).values()

    assert find.text == "SELECT 1\nWHERE id = :id\n  AND '{}' <> :b"
    assert find.parameters == ("id", "b")


def test_a_statement_written_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="statement first is written twice"):
        parse(SOURCE + SOURCE)


def test_every_statement_is_defined_once() -> None:
    names = list(all_statements())

    assert len(names) == len(set(names))
    assert {"claim", "promote", "finish_succeeded", "create_jobs", "take_shards", "find_execution"} <= set(names)


def test_every_claim_moves_rows_by_the_same_text() -> None:
    """So a rule about claims is written once, and holds for all of them."""
    move = re.compile(r"INSERT INTO timeball\.running\b")
    sources = [path.read_text(encoding="utf-8") for path in (files("timeball.store") / "sql").iterdir()]

    assert sum(len(move.findall(source)) for source in sources) == 1
    claims = {name for name, statement in all_statements().items() if move.search(statement.text)}
    assert claims == {"claim", "claim_by_id", "claim_tickets"}


@pytest.mark.parametrize("fresh_database", ["pg15", "pg18"], indirect=True)
async def test_every_statement_is_understood_by_the_server(store: Store) -> None:
    misunderstood: dict[str, Any] = {}
    async with store.database.connection() as connection:
        for name, statement in all_statements().items():
            try:
                prepared = await connection.prepare(statement.numbered())
            except Exception as error:
                misunderstood[name] = error
            else:
                assert len(prepared.get_parameters()) == len(statement.parameters), name

    assert misunderstood == {}
