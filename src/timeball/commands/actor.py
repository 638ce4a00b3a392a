"""Who gives a command."""

from __future__ import annotations

from dataclasses import dataclass

from timeball.store.interface import AuditEntry


@dataclass(frozen=True, slots=True)
class Actor:
    """Who gives a command, and why."""

    name: str = "local"
    reason: str | None = None

    @property
    def entry(self) -> AuditEntry:
        return AuditEntry(self.name, self.reason)


LOCAL = Actor()
