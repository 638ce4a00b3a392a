"""What handlers declare holds for every job, through every door.

A worker publishes a contract for each of its handlers. A job that is written by HTTP, form, command line, template or sync file takes the
options it was not told from the newest contract, and its payload is checked against it. A Python program that has the handler knows all
this without asking; it comes past here only with what is not enqueued by the thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timeball.commands.base import Base
from timeball.domain.contract import ContractVersion, inherit, tightened
from timeball.domain.instants import shown
from timeball.domain.job import JobSpec
from timeball.domain.text import to_json
from timeball.errors import InvalidInput
from timeball.setting_names import did_you_mean, nearest

# So many names a misspelt one is compared with.
_MOST_NAMES = 1_000
# More warnings than these help no reader.
_MOST_WARNINGS = 20
_FEW = 20


@dataclass(frozen=True, slots=True)
class Told:
    """A job as a caller asks for it, and the names of the fields that were given; *payloads* stand for its own, if there are many."""

    spec: JobSpec
    names: Collection[str]
    is_unchecked: bool = False
    payloads: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The newest contract of a handler, and the schemas by which a payload is judged, that of the newest first."""

    newest: ContractVersion
    schemas: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Completed:
    """Wishes with what their handlers declare, and what their callers should know."""

    specs: list[JobSpec]
    warnings: list[str] = field(default_factory=list)


class Contracts(Base):
    """Fill in what handlers declare, and refuse payloads that they could never take."""

    async def complete(self, wishes: Sequence[Told], place: Callable[[int], str] | None = None) -> Completed:
        """Wishes with the options of their handlers in all fields that were not told; their payloads are checked.

        Two reads for all of them. *place* says where a wish stands in what was sent, for the pointers of a refusal.
        """
        handlers = list(dict.fromkeys(wish.spec.handler for wish in wishes))
        published = await self._published(handlers)
        specs: list[JobSpec] = []
        for number, done in enumerate(await self._completed_each(wishes, published)):
            if isinstance(done, InvalidInput):
                raise done if place is None else done.below(place(number))
            specs.append(done)
        return Completed(specs, await self._warnings(handlers, published))

    async def complete_each(self, wishes: Sequence[Told]) -> tuple[list[JobSpec | InvalidInput], list[str]]:
        """The same, with the refusal in the place of each wish that does not fit; and the warnings."""
        handlers = list(dict.fromkeys(wish.spec.handler for wish in wishes))
        published = await self._published(handlers)
        return await self._completed_each(wishes, published), await self._warnings(handlers, published)

    async def _completed_each(
        self, wishes: Sequence[Told], published: Mapping[str, Published]
    ) -> list[JobSpec | InvalidInput]:
        def work() -> list[JobSpec | InvalidInput]:
            return [self._completed_or_refused(wish, published.get(wish.spec.handler)) for wish in wishes]

        # Many are looked at aside: ten thousand payloads would hold up the loop.
        is_short = len(wishes) < _FEW and all(wish.payloads is None for wish in wishes)
        return work() if is_short else await asyncio.to_thread(work)

    def _completed_or_refused(self, wish: Told, known: Published | None) -> JobSpec | InvalidInput:
        try:
            return self._completed(wish, known)
        except InvalidInput as error:
            return error

    def _completed(self, wish: Told, known: Published | None) -> JobSpec:
        if known is None:
            return wish.spec
        if not wish.is_unchecked:
            self._check_told(wish, known)
        return inherit(wish.spec, wish.names, known.newest.options)

    def _check_told(self, wish: Told, known: Published) -> None:
        if wish.payloads is None:
            self.check_published(known, to_json(wish.spec.payload))
            return
        for number, payload in enumerate(wish.payloads):
            try:
                self.check_published(known, payload)
            except InvalidInput as error:
                raise error.below(str(number)) from None

    async def published(self, handler: str) -> Published | None:
        """What workers have published of a handler, as `check_published` needs it; None if nothing was."""
        return (await self._published([handler])).get(handler)

    async def warn(self, handler: str) -> list[str]:
        """What a caller who chooses this handler should know."""
        return await self._warnings([handler], await self._published([handler]))

    async def _check_contract(self, handler: str, payload: str) -> None:
        """Refuse a payload that the handler could never take, by what workers have published."""
        known = await self.published(handler)
        if known is not None:
            self.check_published(known, payload)

    async def _fields_for(self, fields: Mapping[str, Any], present: str) -> dict[str, Any]:
        """The fields of an edit of a job with the handler *present*; another handler's `at_most_once` holds unless another is told."""
        handler = fields.get("handler", present)
        known = None if handler == present else (await self._published([handler])).get(handler)
        return dict(fields) if known is None else tightened(fields, known.newest.options)

    async def _published(self, handlers: Sequence[str]) -> dict[str, Published]:
        versions = await self._store.handlers.versions(handlers)
        asked = [v for name, found in versions.items() if not self._is_checked_here(name) for v in _decisive(found)]
        schemas = await self._store.handlers.schemas(asked)
        return {
            name: Published(found[0], [schemas[v.fingerprint] for v in _decisive(found) if v.fingerprint in schemas])
            for name, found in versions.items()
        }

    def _is_checked_here(self, handler: str) -> bool:
        """Built-in handlers are checked by their own models, which say more than a schema."""
        return self._handlers.checker(handler) is not None

    def check_published(self, known: Published, payload: str) -> None:
        """A payload fits if the newest contract takes it, or that of a living worker: some deploy is under way then."""
        refusals: list[InvalidInput] = []
        for schema in known.schemas:
            try:
                self._handlers.check(schema, known.newest.name, payload)
            except InvalidInput as error:
                refusals.append(error)
            else:
                return
        if refusals:
            raise refusals[0]

    async def _warnings(self, handlers: Sequence[str], published: Mapping[str, Published]) -> list[str]:
        strangers = [name for name in handlers if name not in published and not self._handlers.knows(name)]
        if not strangers:
            return []
        names = await self._store.handlers.names(_MOST_NAMES)
        return [_warning(name, names) for name in strangers[:_MOST_WARNINGS]]


def _decisive(versions: Sequence[ContractVersion]) -> list[ContractVersion]:
    """The newest contract, and those that living workers have."""
    return [version for version in versions if version.is_newest or version.workers]


def _warning(handler: str, names: Sequence[str]) -> str:
    question = did_you_mean(nearest(handler, names))
    meant = f" {question[0].upper()}{question[1:]}" if question else ""
    return f"no worker has published the handler {shown(handler)}: its executions wait until one does.{meant}"
