"""Takes what a program wants done to the store: from any thread or event loop, or into the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from timeball.batcher import Batcher, Slip
from timeball.domain.contract import inherit
from timeball.domain.handler import OWNED_BY_ADMINISTRATORS
from timeball.domain.ids import ExecutionId, JobId, parse_id
from timeball.domain.job import Job, JobSpec
from timeball.errors import NotFound, StoreError
from timeball.portal import Portal
from timeball.shortcut import Shortcut

if TYPE_CHECKING:
    from timeball.commands import Actor, Commands
    from timeball.env import Env
    from timeball.settings import Settings
    from timeball.store.interface import Created, LoopLine, Own, Pattern, ThreadLine
    from timeball.transactions import Batch
    from timeball.wiring import Parts

# The ids of enqueued executions, which are those of their jobs; occurrences of a schedule have ids of version 8.
_ENQUEUED_VERSION = 7
# A clock that has not been compared with the database's for longer is compared before it is relied on.
_CLOCK_IS_GOOD_FOR_SECONDS = 5.0
# While more than these wait for a commit they share, whoever goes alone would only make them wait for his.
_FEW_TOGETHER = 2
# A program has so many kinds of wishes at most, or makes a new one each time.
_MOST_PATTERNS = 1_000
# How long the published contract of a handler that is not known here is relied on.
_CONTRACTS_ARE_GOOD_FOR_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A one-off somebody wants: its job without the payload, and what only the moment of sending can fill in."""

    spec: JobSpec
    delay: timedelta | None = None
    connection: Any = None
    # The fields that were told, if the handler is not known here: the others are as workers have published them.
    told: frozenset[str] | None = None
    # Whether such a handler is given payloads that its published contract refuses.
    is_unchecked: bool = False


class Inheritance(NamedTuple):
    """What a handler that is not known here gives to its jobs, and what refuses a payload that it could never take."""

    options: Mapping[str, Any]
    check: Callable[[str], None]


def _anything(_payload: str) -> None:
    """Nothing was published: every payload is taken."""


class Desk:
    """What the portal keeps open: the parts of this process, used in its loop alone, and the way past it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.enqueues: Batcher[tuple[Wish, str], Created] = Batcher(self._create)
        database, monotonic = parts.store.database, parts.env.clock.monotonic
        self.shortcut: Shortcut[ThreadLine] = Shortcut(database.thread_line, monotonic)
        self.ashortcut: Shortcut[LoopLine] = Shortcut(database.loop_line, monotonic)
        self._compared_at = parts.env.clock.monotonic()
        self._patterns: dict[int, tuple[Wish, Pattern | None]] = {}
        self._contracts: dict[str, tuple[float, Inheritance]] = {}

    def contract_of(self, handler: str) -> Inheritance | None:
        """What workers have published of a handler, from any thread; None if that was not read lately."""
        read_at, found = self._contracts.get(handler, (float("-inf"), None))
        is_fresh = self.parts.env.clock.monotonic() - read_at < _CONTRACTS_ARE_GOOD_FOR_SECONDS
        return found if is_fresh else None

    async def read_contract(self, handler: str) -> Inheritance:
        """The same, read now."""
        commands = self.commands
        known = await commands.published(handler)
        if len(self._contracts) >= _MOST_PATTERNS:
            self._contracts.clear()
        found = (
            Inheritance({}, _anything)
            if known is None
            else Inheritance(known.newest.options, partial(commands.check_published, known))
        )
        self._contracts[handler] = self.parts.env.clock.monotonic(), found
        return found

    @property
    def commands(self) -> Commands:
        return self.parts.commands

    @staticmethod
    def actor(reason: str | None) -> Actor:
        """Who gives commands here."""
        from timeball.commands import Actor

        return Actor(reason=reason)

    async def now(self) -> datetime:
        """The database's time: this machine may have slept, or its clock have drifted, since it was last compared."""
        clock = self.parts.env.clock
        if clock.monotonic() - self._compared_at > _CLOCK_IS_GOOD_FOR_SECONDS:
            await self.parts.store.learn_clock()
            self._compared_at = clock.monotonic()
        return clock.now()

    async def _create(self, wishes: Sequence[tuple[Wish, str]]) -> list[Created]:
        first = wishes[0][0]
        is_alike = len(wishes) == 1 or all(wish is first for wish, _ in wishes)
        if is_alike and (pattern := self.pattern(first)) is not None:
            return await self.commands.enqueue(pattern, [payload for _, payload in wishes])
        specs = [with_payload(await self._spec(wish), payload) for wish, payload in wishes]
        return [await self.known(made) for made in await self.commands.create_all(specs)]

    def pattern(self, wish: Wish) -> Pattern | None:
        """What can be checked and encoded once for all jobs of this wish, from any thread; None if each is something of its own."""
        known = self._patterns.get(id(wish))
        if known is None:
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            pattern = self.commands.pattern(wish.spec) if wish.delay is None else None
            # With the wish itself: while it is kept, no other can have its id.
            known = self._patterns[id(wish)] = (wish, pattern)
        return known[1]

    def pattern_of_one(self, wish: Wish, way: Shortcut[Any]) -> Pattern | None:
        """The pattern of a wish that can go by this way; None if it is something of its own, or comes with a crowd."""
        if self.enqueues.crowd > _FEW_TOGETHER:
            way.break_row()
            return None
        return self.pattern(wish)

    async def create_many(self, wish: Wish, payloads: Sequence[str]) -> list[ExecutionId]:
        """Create many jobs, all or none."""
        spec = await self._spec(wish)
        if spec.max_running is None:
            return await self.commands.enqueue_many(spec, payloads)
        # A bulk enqueue knows no limits; creating does, and is all or none too.
        made = await self.commands.create_all([with_payload(spec, payload) for payload in payloads])
        return [execution_of(created) for created in made]

    async def prepare(self, wish: Wish, payloads: Sequence[str]) -> Batch:
        """Jobs for the caller to write."""
        from timeball.transactions import Batch

        spec = await self._spec(wish)
        prepared = self.commands.prepare([with_payload(spec, payload) for payload in payloads])
        jobs = self.parts.store.jobs
        entry = self.actor(None).entry
        return Batch(
            notes={
                job.id: jobs.note_of_new(job, self.parts.env.new_id(), entry)
                for job, _ in prepared
                if job.handler in OWNED_BY_ADMINISTRATORS
            },
            jobs=[job for job, _ in prepared],
            openings=[opening for _, opening in prepared if opening is not None],
            hoist_window=self.parts.store.hoist_window,
            now=self.parts.env.clock.statement_now(),
        )

    async def known(self, made: Created) -> Created:
        """For an execution that was there already, the job it belongs to."""
        if made.is_new:
            return made
        execution_id = execution_of(made)
        if execution_id.version == _ENQUEUED_VERSION:
            return replace(made, job_id=JobId(execution_id))
        holder = await self.parts.store.history.find(execution_id)
        return made if holder is None else replace(made, job_id=holder.job_id)

    async def find_job(self, key: str) -> Job:
        """The job of this name, or of this id (`job_...`)."""
        jobs = self.parts.store.jobs
        found = await jobs.find_by_name(key)
        if found is None and key.startswith("job_"):
            job_id = JobId(parse_id("job", key))
            found = (await jobs.find([job_id])).get(job_id)
        if found is None or found.deleted_at is not None:
            raise NotFound("job", key)
        return found

    async def _spec(self, wish: Wish) -> JobSpec:
        if wish.delay is None:
            return wish.spec
        return replace(wish.spec, scheduled_at=await self.now() + wish.delay)


def with_payload(spec: JobSpec, payload: str) -> JobSpec:
    """The job with its payload, which is JSON text already."""
    return replace(spec, payload=orjson.Fragment(payload))


def execution_of(made: Created) -> ExecutionId:
    """The execution of an enqueued job: it always has one."""
    assert made.execution_id is not None
    return made.execution_id


class Office:
    """Sends wishes; every verb has a twin for coroutines, with an `a` before its name."""

    def __init__(self, settings: Callable[[], Settings], env: Callable[[], Env | None] = lambda: None) -> None:
        self._settings = settings
        self._env = env
        self.portal: Portal[Desk] = Portal(self._open)

    def _open(self) -> AbstractAsyncContextManager[Desk]:
        return _open_desk(self._settings(), self._env())

    def send(self, wish: Wish, payload: str) -> Created:
        """Enqueue one job; it is committed when this returns, or lies in the caller's transaction."""
        if wish.told is not None:
            wish = self._inherited(wish, wish.told, [payload])
        if wish.connection is not None:
            return self._write(wish, [payload])[0]
        slip: Slip[Created] | None = None
        while slip is None:
            desk = self._desk()
            made = self._send_by_hand(desk, wish, payload)
            if made is not None:
                return made
            slip = desk.enqueues.submit((wish, payload))
        try:
            return slip.result()
        except BaseException:
            slip.cancel()
            raise

    def _send_by_hand(self, desk: Desk, wish: Wish, payload: str) -> Created | None:
        """Enqueue one job without waking another thread; None, and nothing is done, if that is not possible now."""
        pattern = desk.pattern_of_one(wish, desk.shortcut)
        if pattern is None:
            return None
        commands = desk.commands
        own: list[Own] = []

        def write(line: ThreadLine) -> Created:
            own.append(commands.prepare_alone(pattern, payload))
            return commands.enqueue_alone(pattern, own[0], line)

        try:
            return desk.shortcut.run(write)
        except StoreError:
            if desk.shortcut.is_closed:
                raise
            # Whether it was written is not known. There is time now for another thread, which looks.
            return self.portal.call(lambda desk: desk.commands.make_sure(pattern, own))[0]

    async def asend(self, wish: Wish, payload: str) -> Created:
        if wish.told is not None:
            wish = await self._ainherited(wish, wish.told, [payload])
        if wish.connection is not None:
            return (await self._awrite(wish, [payload]))[0]
        future: asyncio.Future[Created] | None = None
        while future is None:
            desk = await self._adesk()
            made = await self._asend_by_hand(desk, wish, payload)
            if made is not None:
                return made
            future = desk.enqueues.asubmit((wish, payload))
        return await future

    async def _asend_by_hand(self, desk: Desk, wish: Wish, payload: str) -> Created | None:
        pattern = desk.pattern_of_one(wish, desk.ashortcut)
        if pattern is None:
            return None
        commands = desk.commands
        own: list[Own] = []

        def write(line: LoopLine) -> Coroutine[Any, Any, Created]:
            own.append(commands.prepare_alone(pattern, payload))
            return commands.aenqueue_alone(pattern, own[0], line)

        try:
            return await desk.ashortcut.arun(write)
        except StoreError:
            if desk.ashortcut.is_closed:
                raise
            return (await self.portal.acall(lambda desk: desk.commands.make_sure(pattern, own)))[0]

    def send_many(self, wish: Wish, payloads: Sequence[str]) -> list[ExecutionId]:
        """Enqueue many jobs that differ only in their payloads, all or none."""
        if wish.told is not None:
            wish = self._inherited(wish, wish.told, payloads)
        if wish.connection is None:
            return self.portal.call(lambda desk: desk.create_many(wish, payloads))
        return [execution_of(made) for made in self._write(wish, payloads)]

    async def asend_many(self, wish: Wish, payloads: Sequence[str]) -> list[ExecutionId]:
        if wish.told is not None:
            wish = await self._ainherited(wish, wish.told, payloads)
        if wish.connection is None:
            return await self.portal.acall(lambda desk: desk.create_many(wish, payloads))
        return [execution_of(made) for made in await self._awrite(wish, payloads)]

    def _inherited(self, wish: Wish, told: frozenset[str], payloads: Sequence[str]) -> Wish:
        """The wish with the published options of a handler that is not known here; its payloads are checked."""
        handler, desk = wish.spec.handler, self.portal.resource
        known = None if desk is None else desk.contract_of(handler)
        if known is None:
            known = self.portal.call(lambda desk: desk.read_contract(handler))
        return _under_contract(wish, told, payloads, known)

    async def _ainherited(self, wish: Wish, told: frozenset[str], payloads: Sequence[str]) -> Wish:
        handler, desk = wish.spec.handler, self.portal.resource
        known = None if desk is None else desk.contract_of(handler)
        if known is None:
            known = await self.portal.acall(lambda desk: desk.read_contract(handler))
        return _under_contract(wish, told, payloads, known)

    def _desk(self) -> Desk:
        desk = self.portal.resource
        return self.portal.call(_itself) if desk is None else desk

    async def _adesk(self) -> Desk:
        desk = self.portal.resource
        return await self.portal.acall(_itself) if desk is None else desk

    def _write(self, wish: Wish, payloads: Sequence[str]) -> list[Created]:
        from timeball.transactions import create_in

        made = create_in(wish.connection, self.portal.call(lambda desk: desk.prepare(wish, payloads)))
        return self.portal.call(_all_known(made))

    async def _awrite(self, wish: Wish, payloads: Sequence[str]) -> list[Created]:
        from timeball.transactions import acreate_in

        made = await acreate_in(wish.connection, await self.portal.acall(lambda desk: desk.prepare(wish, payloads)))
        return await self.portal.acall(_all_known(made))


def _under_contract(wish: Wish, told: frozenset[str], payloads: Sequence[str], known: Inheritance) -> Wish:
    if not wish.is_unchecked:
        for payload in payloads:
            known.check(payload)
    return replace(wish, spec=inherit(wish.spec, told, known.options)) if known.options else wish


def _all_known(made: Sequence[Created]) -> Callable[[Desk], Coroutine[Any, Any, list[Created]]]:
    async def look(desk: Desk) -> list[Created]:
        return [await desk.known(created) for created in made]

    return look


async def _itself(desk: Desk) -> Desk:
    return desk


@asynccontextmanager
async def _open_desk(settings: Settings, env: Env | None) -> AsyncIterator[Desk]:
    # Here and not above: a program that only declares handlers needs no database driver.
    from timeball.wiring import opened

    async with opened(settings, env) as parts:
        desk = Desk(parts)
        try:
            yield desk
        finally:
            desk.enqueues.close()
            await asyncio.gather(*(asyncio.to_thread(way.close) for way in (desk.shortcut, desk.ashortcut)))
