"""A new server is made like one that has run for a while, for everybody who is measured on it.

Each 16 MiB of its log a new server stops all commits to make the next file, here for up to 90 ms; one that has run for
some minutes uses its old files again. So a drain of a few seconds on a new server measures the making of files.
"""

from __future__ import annotations

import psycopg

_MEBIBYTES = 512  # less than makes the server check by itself


def season(dsn: str) -> None:
    """Fill the log's files once, and let the server have them back."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(_MEBIBYTES):
            connection.execute("SELECT pg_logical_emit_message(false, 'bench', repeat('x', 1 << 20))")
        connection.execute("CHECKPOINT")
