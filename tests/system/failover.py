"""A primary with a standby that follows it, and an address that stays the same when the standby takes its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.support.servers import POSTGRES_PORT, ROLE, wait_until
from tests.system.cluster import DurableServer, make_server


class Pair:
    """Two servers; `dsn` leads to the one that is the primary just now, as a name in the DNS would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary = make_server(folder / "one")
        self.standby = make_server(folder / "two")
        self._front = folder / "front"

    def start(self) -> None:
        """Start the primary, copy it, and have the copy follow it."""
        self.primary.start()
        copied = self.standby.copy_from(self.primary)
        assert copied.returncode == 0, copied.stderr
        self.standby.start()
        wait_until(lambda: self._followers() == 1, "the standby follows")
        self._lead_to(self.primary)

    def _followers(self) -> int:
        return len(self.primary.execute("SELECT pid FROM pg_stat_replication WHERE state = 'streaming'"))

    def _lead_to(self, server: DurableServer) -> None:
        new = self._front.with_suffix(".new")
        new.symlink_to(server.folder)
        os.replace(new, self._front)

    def dsn(self, database: str) -> str:
        return f"postgresql://{ROLE}@/{database}?host={quote(str(self._front), safe='')}&port={POSTGRES_PORT}"

    def catch_up(self) -> None:
        """Wait until the standby has everything."""
        ((sent,),) = self.primary.execute("SELECT pg_current_wal_lsn()")
        wait_until(
            lambda: self.standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{sent}'") == [(True,)],
            "the standby has caught up",
        )

    def cut_off_standby(self) -> None:
        """What the primary writes from here on, the standby will never see."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self._followers() == 0, "the standby follows no more")

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place."""
        self.primary.stop_at_once()
        assert self.standby.execute("SELECT pg_promote()") == [(True,)]
        self._lead_to(self.standby)

    def stop(self) -> None:
        for server in (self.standby, self.primary):
            server.stop()


@contextmanager
def running_pair(folder: Path) -> Iterator[Pair]:
    pair = Pair(folder)
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()
