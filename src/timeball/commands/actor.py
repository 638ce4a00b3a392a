"""Who gives a command."""

from __future__ import annotations

from dataclasses import dataclass

from timeball.store.interface import AuditEntry


@dataclass(frozen=True, slots=True)
class Actor:
    """Who gives a command, why, and from where; and whether they may write what `shell.command` runs.

    Whoever holds the database's password may do everything, so the default is an administrator.
    """

    name: str = "local"
    reason: str | None = None
    place: str | None = None
    is_administrator: bool = True

    @property
    def entry(self) -> AuditEntry:
        return AuditEntry(self.name, self.reason, self.place)


LOCAL = Actor()
