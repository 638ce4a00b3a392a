"""What commands are given: the actor, the requested jobs, and the ids that an idempotent request reserves."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.handler import ContractVersion
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import IdempotentRequest
from timeball.errors import Conflict
from timeball.store.types import AuditEntry

if TYPE_CHECKING:
    from timeball.env import Env

_MAX_AUTHOR_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """Who gives a command, why, and from where; and whether they may write what `shell.command` runs.

    A caller that holds the database's password may do everything, so the default is an administrator. Without an *author*, this
    program is the author of what it creates.
    """

    name: str = "local"
    reason: str | None = None
    place: str | None = None
    is_administrator: bool = True
    author: str | None = None

    @property
    def entry(self) -> AuditEntry:
        return AuditEntry(self.name, self.reason, self.place)

    @property
    def created_by(self) -> str:
        """The author of the jobs and executions that this actor creates."""
        return (self.author or current_program())[:_MAX_AUTHOR_LENGTH]

    def is_confined(self, payload: str) -> bool:
        """Whether a payload may use bound secrets only: it names secrets, and its author is no administrator."""
        return not self.is_administrator and '"$secret"' in payload


LOCAL = Actor()


@cache
def current_program() -> str:
    """The account, the machine and the program of this process: `program:alice@web-1 shop.py`."""
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as a number that has no name
        account = str(os.geteuid())
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return f"program:{account}@{socket.gethostname()} {program if program not in ('', '-c', '-') else 'python'}"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as a caller requests it, and the names of the given fields; in a bulk enqueue *payloads* replace its payload."""

    spec: JobSpec
    names: Collection[str]
    is_unchecked: bool = False
    payloads: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PublishedContract:
    """The newest contract of a handler, and the schemas by which a payload is judged, that of the newest first."""

    newest: ContractVersion
    schemas: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ResolvedJobs:
    """Specs with the options that their handlers declare, and warnings for the caller."""

    specs: list[JobSpec]
    warnings: list[str] = field(default_factory=list)


def new_ids(env: Env, count: int, idempotency: IdempotentRequest | None) -> Iterator[UUID]:
    """Ids for what a command creates: those that an idempotent request reserves, or new ones."""
    if idempotency is not None:
        return idempotency.ids(count)
    return iter([env.new_id()]) if count == 1 else env.new_ids(count)


def check_version(kind: str, version: int, expected: int | None) -> None:
    """Refuse a change that was made for another version of a job or a template."""
    if expected is not None and version != expected:
        raise Conflict(
            f"the {kind} has version {version}, the change was made for version {expected}",
            hint=f"read the {kind} again, and repeat the change on what is there",
            version=version,
        )
