"""Connections that a caller uses by himself: what they tell the server, and leave there."""

from __future__ import annotations

import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import VERSIONS
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.db.direct_connection import DirectConnectionOptions, LoopConnection, ThreadConnection
from timeball.store.db.statements import all_statements
from timeball.store.db.url import DatabaseUrl

pytestmark = pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)


def route_to(dsn: str, *, behind_pgbouncer: bool = False) -> DirectConnectionOptions:
    return DirectConnectionOptions(
        url=DatabaseUrl.parse(dsn),
        session={"application_name": "timeball", "jit": "off"},
        patience_seconds=10,
        silence_seconds=8,
        behind_pgbouncer=behind_pgbouncer,
    )


@pytest.mark.parametrize("behind_pgbouncer", [False, True])
def test_statements_are_prepared_unless_the_session_belongs_to_nobody(
    fresh_database: FreshDatabase, behind_pgbouncer: bool
) -> None:
    line = ThreadConnection.connect(route_to(fresh_database.dsn, behind_pgbouncer=behind_pgbouncer))
    for _ in range(10):
        line.run("moment", {"now": None})

    found = line._cursor.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    settings = line._cursor.execute("SELECT current_setting('application_name'), current_setting('jit')").fetchone()
    line.close()

    assert found == (0 if behind_pgbouncer else 1,)
    assert (settings == ("timeball", "off")) is not behind_pgbouncer


def test_what_the_address_asks_of_the_session_is_kept(fresh_database: FreshDatabase) -> None:
    joint = "&" if "?" in fresh_database.dsn else "?"
    line = ThreadConnection.connect(route_to(f"{fresh_database.dsn}{joint}options=-c%20work_mem%3D5MB"))
    found = line._cursor.execute("SELECT current_setting('work_mem'), current_setting('jit')").fetchone()
    line.close()

    assert found == ("5MB", "off")


async def test_errors_are_told_in_our_words(fresh_database: FreshDatabase) -> None:
    line = ThreadConnection.connect(route_to(fresh_database.dsn))
    with pytest.raises(StoreError, match="PostgreSQL refused a statement") as refused:
        line.run("enqueue_one", dict.fromkeys(all_statements()["enqueue_one"].parameters))
    line.hang_up()
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        line.run("moment", {"now": None})
    line.close()
    line.hang_up()

    assert not isinstance(refused.value, StoreUnavailable)


@pytest.mark.parametrize("kind", [ThreadConnection, LoopConnection])
def test_a_server_that_is_away_is_unavailable(
    fresh_database: FreshDatabase, kind: type[ThreadConnection] | type[LoopConnection]
) -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        kind.connect(route_to("postgresql://nobody@127.0.0.1:1/nothing"))
