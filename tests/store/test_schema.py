"""The schema can be read in one file, and that file tells the truth."""

from __future__ import annotations

from collections.abc import Callable

from tests.schema import SCHEMA_FILE, schema_text
from tests.servers import PostgresServer, Servers


def test_the_schema_file_is_what_the_migrations_make(
    servers: Servers, template_of: Callable[[PostgresServer], str]
) -> None:
    server = servers.postgres("pg15")

    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(server.dsn(template_of(server))), (
        "src/timeball/store/schema.sql is not up to date: run `make schema` and commit what it writes"
    )


def test_the_schema_file_is_sql_that_makes_the_same_schema(servers: Servers) -> None:
    server = servers.postgres("pg15")
    name = server.create_database()

    server.execute("CREATE SCHEMA timeball;" + SCHEMA_FILE.read_text(encoding="utf-8"), name)

    assert schema_text(server.dsn(name)) == SCHEMA_FILE.read_text(encoding="utf-8")
    server.drop_database(name)
