"""Statements that are run, and what their plans have read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from tests.support.servers import PostgresServer
from timeball.store.db.database import _SESSION_SETTINGS
from timeball.store.db.statements import all_statements

# What a planner knows that has not looked since the tables were empty (fault 30).
FORGET = """
DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'timeball'::regnamespace);
UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE relnamespace = 'timeball'::regnamespace;
"""
# What vacuum writes down that has found a table empty: its pages are there, so that is believed however many rows come.
EMPTY = """
UPDATE pg_class SET reltuples = 0, relpages = greatest(pg_relation_size(oid) / 8192, 1)
WHERE relnamespace = 'timeball'::regnamespace AND relkind = 'r';
"""
# What a planner believes of rooms that were full when it last looked, and empty when vacuum came: it still knows how rows lay in them,
# and takes reading them in the order of an index for dear.
EMPTIED = f"""
ANALYZE;
{EMPTY.rstrip().removesuffix(";")} AND relname IN ('due', 'ready', 'blocked', 'running');
"""
ALL_MODES = ("force_custom_plan", "force_generic_plan")

# A row costs a few pages to find by an index, and a few more to write; and a page for each version that a test before has taken back.
_PAGES_OF_A_ROW, _PAGES_BESIDES = 15, 200


@contextmanager
def session(server: PostgresServer, database: str, settings: str = "") -> Iterator[psycopg.Connection[Any]]:
    """A connection with the settings of the store's own; nothing it does is kept."""
    with psycopg.connect(server.dsn(database), prepare_threshold=None) as connection:
        for name, value in _SESSION_SETTINGS.items():
            connection.execute(f"SET {name} = '{value}'")
        if settings:
            connection.execute(settings)
        connection.commit()
        yield connection
        connection.rollback()


def explained(
    connection: psycopg.Connection[Any], name: str, given: dict[str, Any], now: datetime, how: str
) -> dict[str, Any]:
    """The plan of a prepared statement, as the store's driver prepares it; EXPLAIN is told *how*."""
    statement = all_statements()[name]
    values = [now if parameter == "now" else given[parameter] for parameter in statement.parameters]
    connection.execute(sql.SQL("PREPARE hot AS ") + sql.SQL(statement.numbered()))
    arguments = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, values))) if values else sql.SQL("")
    row = connection.execute(sql.SQL(f"EXPLAIN ({how}, FORMAT JSON) EXECUTE hot") + arguments).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def run_explained(
    connection: psycopg.Connection[Any], name: str, given: dict[str, Any], now: datetime
) -> dict[str, Any]:
    """Run a prepared statement, and return its plan with what it read."""
    return explained(connection, name, given, now, "ANALYZE, BUFFERS")


def check_touched(
    connection: psycopg.Connection[Any], name: str, given: dict[str, Any], most: int, now: datetime
) -> None:
    """Run a statement, which may look at so many rows of tables at most, and read so many pages as go with them."""
    plan = run_explained(connection, name, given, now)
    scans = list(rows_touched(plan))
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    listing = "\n".join([f"{pages:,} pages", *(f"{rows:>9,} {scan}" for scan, rows in scans)])
    assert sum(rows for _, rows in scans) <= most, listing
    assert pages <= _PAGES_OF_A_ROW * most + _PAGES_BESIDES, listing


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def rows_touched(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every scan of a table in a plan that was run: how, and how many rows it looked at."""
    for scan in scans_of(plan):
        looked_at = sum(
            scan.get(part, 0) for part in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        )
        name = f"{scan['Node Type']} on {scan['Relation Name']} by {scan.get('Index Name', 'no index')}"
        yield name, round(looked_at * scan["Actual Loops"])


def scans_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every scan of a table in a plan."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans_of(part)
