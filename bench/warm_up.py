"""Brings a new PostgreSQL into the state of one that has run for some minutes, before it is measured.

A new server stops all commits for up to 90 ms whenever it creates a WAL file, every 16 MiB; later it uses its old files again.
A drain of a few seconds on a new server would measure the creation of files.
"""

from __future__ import annotations

import psycopg

_MEBIBYTES = 512  # less than triggers a checkpoint


def warm_up(dsn: str) -> None:
    """Fill the WAL files once, and let the server use them again."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(_MEBIBYTES):
            connection.execute("SELECT pg_logical_emit_message(false, 'bench', repeat('x', 1 << 20))")
        connection.execute("CHECKPOINT")
