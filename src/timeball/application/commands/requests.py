"""What commands are given (the actor, the requested jobs), and what handlers declare for the requested jobs.

What a handler declares holds for every job, through every front. A worker publishes a contract for each of its handlers. A job that is
written by HTTP, form, command line, template or sync file takes the options that were not given from the newest contract, and its payload
is checked against it. A Python program that has the handler knows all this without asking; its bulk enqueues do not come through here.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.expectations import check_expecting
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS, calls_in, map_calls
from timeball.domain.handler import (
    ADMIN_HANDLERS,
    ContractVersion,
    PayloadRules,
    UncheckedPayloads,
    inherit_call_options,
    inherit_options,
    keep_at_most_once,
)
from timeball.domain.job_fields import JobSpec
from timeball.domain.payload_references import REFERENCE_MARK, check_references
from timeball.domain.values.field_errors import did_you_mean, nearest_names
from timeball.domain.values.ids import IdempotentRequest
from timeball.domain.values.json_text import to_json
from timeball.errors import Conflict, InvalidInput, NotAllowed, quote_text
from timeball.store.types import AuditEntry

if TYPE_CHECKING:
    from timeball.env import Env
    from timeball.store.store import Store

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


# How many published names a misspelt one is compared with.
_MAX_COMPARED_NAMES = 1_000
_MAX_WARNINGS = 20
# More requests than this are checked in a thread: ten thousand payloads would hold up the event loop.
_INLINE_LIMIT = 20


class ContractChecks:
    """Fill in what handlers declare, and refuse payloads that they could never take."""

    def __init__(self, store: Store, handlers: PayloadRules | None = None) -> None:
        self._store = store
        self._handlers = handlers or UncheckedPayloads()

    # what this process knows itself: built-in handlers, and who may use them

    def check_owner(self, handler: str, actor: Actor) -> None:
        """Refuse handlers whose payloads only an administrator may write."""
        if handler in ADMIN_HANDLERS and not actor.is_administrator:
            raise NotAllowed(
                f"only an administrator may set the payload of {handler}",
                hint="ask one to create or change this job; an operator may run it as it is",
            )

    def check_payload(self, handler: str, payload: str, actor: Actor) -> None:
        """Refuse a payload that the handler could never take, or that the actor may not write."""
        self.check_owner(handler, actor)
        check = self._handlers.checker(handler)
        if check is not None:
            check(payload)
        elif REFERENCE_MARK in payload:
            check_references(payload)

    def check_follow_ups(self, fields: Mapping[str, Any], actor: Actor) -> None:
        """Refuse calls that the handlers could never take, or that the actor may not write, among those that follow a job."""
        for path, call in calls_in(fields):
            self.check_owner(call["handler"], actor)
            check = self._handlers.checker(call["handler"])
            if check is None:
                continue
            try:
                check(to_json(call["payload"]))
            except InvalidInput as error:
                raise error.below(path) from None

    def check_payloads(self, handler: str, payloads: Sequence[str], actor: Actor) -> None:
        """The same for many; the error points to the number of the payload."""
        self.check_owner(handler, actor)
        check = self._handlers.checker(handler)
        for number, payload in enumerate(payloads):
            if check is None and REFERENCE_MARK not in payload:
                continue
            try:
                (check or check_references)(payload)
            except InvalidInput as error:
                raise error.below(str(number)) from None

    def check_edit(self, before: str, after: str, payload: str, actor: Actor) -> None:
        """Refuse a change of handler or payload by an actor who may not write what was there, or what comes."""
        self.check_owner(before, actor)
        self.check_payload(after, payload, actor)

    # what workers have published

    async def resolve(
        self, requests: Sequence[JobRequest], pointer: Callable[[int], str] | None = None
    ) -> ResolvedJobs:
        """The specs of some requests, with the options of their handlers in all fields that were not given; payloads are checked.

        Two reads for all of them. *pointer* says where a request stands in the body, for the pointers of an error.
        """
        results, warnings = await self.resolve_each(requests)
        specs: list[JobSpec] = []
        for number, result in enumerate(results):
            if isinstance(result, InvalidInput):
                raise result if pointer is None else result.below(pointer(number))
            specs.append(result)
        return ResolvedJobs(specs, warnings)

    async def resolve_each(self, requests: Sequence[JobRequest]) -> tuple[list[JobSpec | InvalidInput], list[str]]:
        """A spec or an error for each request; and the warnings."""
        handlers = list(dict.fromkeys(request.spec.handler for request in requests))
        called = {handler for request in requests for handler in _handlers_after(request.spec)}
        contracts = await self._read_contracts([*handlers, *(called - set(handlers))])

        def resolve_all() -> list[JobSpec | InvalidInput]:
            return [self._resolve_or_refuse(request, contracts) for request in requests]

        is_short = len(requests) < _INLINE_LIMIT and all(request.payloads is None for request in requests)
        results = resolve_all() if is_short else await asyncio.to_thread(resolve_all)
        return results, await self._warnings(handlers, contracts)

    def _resolve_or_refuse(
        self, request: JobRequest, contracts: Mapping[str, PublishedContract]
    ) -> JobSpec | InvalidInput:
        contract = contracts.get(request.spec.handler)
        try:
            check_expecting(request.spec, request.names)
            spec = self._resolve_calls(request, contracts)
            if contract is None:
                return spec
            if not request.is_unchecked:
                self._check_request(request, contract)
            return inherit_options(spec, request.names, contract.newest.options)
        except InvalidInput as error:
            return error

    def _resolve_calls(self, request: JobRequest, contracts: Mapping[str, PublishedContract]) -> JobSpec:
        """The spec with the options of their handlers in the calls that follow it; their payloads are checked."""
        complete = partial(self._complete_call, contracts=contracts, is_unchecked=request.is_unchecked)
        calls = {name: getattr(request.spec, name) for name in FOLLOW_UP_FIELDS}
        for name, call in calls.items():
            if isinstance(call, Mapping):
                try:
                    calls[name] = map_calls(call, complete)
                except InvalidInput as error:
                    raise error.below(name) from None
        return replace(request.spec, on_success=calls["on_success"], on_failure=calls["on_failure"])

    def _complete_call(
        self, call: dict[str, Any], contracts: Mapping[str, PublishedContract], *, is_unchecked: bool
    ) -> dict[str, Any]:
        contract = contracts.get(call["handler"]) if isinstance(call["handler"], str) else None
        if contract is None:
            return call
        if not is_unchecked:
            self.check_published(contract, to_json(call.get("payload", {})))
        return inherit_call_options(call, contract.newest.options)

    async def resolve_calls(self, fields: Mapping[str, Any], *, is_unchecked: bool) -> dict[str, Any]:
        """The calls among the fields of an edit or a trigger, each with the options of its handler; their payloads are checked."""
        (calls,) = await self.resolve_calls_of_each([fields], is_unchecked=is_unchecked)
        return {**fields, **calls}

    async def resolve_calls_of_each(
        self, each: Sequence[Mapping[str, Any]], *, is_unchecked: bool
    ) -> list[dict[str, Any]]:
        """The calls among the fields of some edits, as `resolve_calls` has them: two reads for all, none if there are no calls."""
        given = [{name: fields[name] for name in FOLLOW_UP_FIELDS if fields.get(name) is not None} for fields in each]
        requests = [JobRequest(JobSpec(handler="", **calls), (), is_unchecked) for calls in given if calls]
        if not requests:
            return given
        specs = iter((await self.resolve(requests)).specs)
        return [
            {name: getattr(spec, name) for name in calls} if calls and (spec := next(specs)) else {} for calls in given
        ]

    async def resolve_work(self, work: Mapping[str, Any], *, is_unchecked: bool) -> tuple[dict[str, Any], list[str]]:
        """A group or chain with the options of their handlers in its calls, whose payloads are checked; and warnings for the caller."""
        handlers = list(dict.fromkeys(_handlers_in(work)))
        contracts = await self._read_contracts(handlers)
        complete = partial(self._complete_call, contracts=contracts, is_unchecked=is_unchecked)
        resolved = await asyncio.to_thread(map_calls, work, complete)
        return resolved, await self._warnings(handlers, contracts)

    def _check_request(self, request: JobRequest, contract: PublishedContract) -> None:
        if request.payloads is None:
            self.check_published(contract, to_json(request.spec.payload))
            return
        for number, payload in enumerate(request.payloads):
            try:
                self.check_published(contract, payload)
            except InvalidInput as error:
                raise error.below(str(number)) from None

    async def published(self, handler: str) -> PublishedContract | None:
        """What workers have published of a handler, as `check_published` needs it; None if nothing was."""
        return (await self._read_contracts([handler])).get(handler)

    async def warn(self, handler: str) -> list[str]:
        """What a caller who chooses this handler should know."""
        return await self._warnings([handler], await self._read_contracts([handler]))

    async def check_contract(self, handler: str, payload: str) -> None:
        """Refuse a payload that the handler could never take, by what workers have published."""
        contract = await self.published(handler)
        if contract is not None:
            self.check_published(contract, payload)

    async def fields_for_edit(self, fields: Mapping[str, Any], current_handler: str) -> dict[str, Any]:
        """The fields of an edit; a new handler's `at_most_once` comes with it, unless another delivery is given."""
        handler = fields.get("handler", current_handler)
        contract = None if handler == current_handler else await self.published(handler)
        return dict(fields) if contract is None else keep_at_most_once(fields, contract.newest.options)

    async def _read_contracts(self, handlers: Sequence[str]) -> dict[str, PublishedContract]:
        versions = await self._store.handlers.versions(handlers)
        needed = [
            version
            for name, published in versions.items()
            if not self._has_checker(name)
            for version in _accepted_versions(published)
        ]
        schemas = await self._store.handlers.schemas(needed)
        return {
            name: PublishedContract(
                published[0],
                [schemas[v.fingerprint] for v in _accepted_versions(published) if v.fingerprint in schemas],
            )
            for name, published in versions.items()
        }

    def _has_checker(self, handler: str) -> bool:
        """Whether a model in this process checks the payloads: those of built-in handlers say more than a schema."""
        return self._handlers.checker(handler) is not None

    def check_published(self, contract: PublishedContract, payload: str) -> None:
        """Refuse a payload that neither the newest contract nor that of any live worker takes.

        The older ones count because a deployment may be in progress.
        """
        errors: list[InvalidInput] = []
        for schema in contract.schemas:
            try:
                self._handlers.check(schema, contract.newest.name, payload)
            except InvalidInput as error:
                errors.append(error)
            else:
                return
        if errors:
            raise errors[0]

    async def _warnings(self, handlers: Sequence[str], contracts: Mapping[str, PublishedContract]) -> list[str]:
        unknown = [name for name in handlers if name not in contracts and not self._handlers.knows(name)]
        if not unknown:
            return []
        names = await self._store.handlers.names(_MAX_COMPARED_NAMES)
        return [_unknown_handler_warning(name, names) for name in unknown[:_MAX_WARNINGS]]


def _handlers_after(spec: JobSpec) -> Iterator[str]:
    """The handlers of the calls that follow a requested job."""
    return _handlers_in({name: getattr(spec, name) for name in FOLLOW_UP_FIELDS})


def _handlers_in(work: Mapping[str, Any]) -> Iterator[str]:
    """The handlers of unchecked calls; one that is no text is refused when its call is checked."""
    return (call["handler"] for _, call in calls_in(work) if isinstance(call["handler"], str))


def _accepted_versions(versions: Sequence[ContractVersion]) -> list[ContractVersion]:
    """The newest contract, and those of live workers."""
    return [version for version in versions if version.is_newest or version.workers]


def _unknown_handler_warning(handler: str, names: Sequence[str]) -> str:
    question = did_you_mean(nearest_names(handler, names))
    suggestion = f" {question[0].upper()}{question[1:]}" if question else ""
    return f"no worker provides the handler {quote_text(handler)}; its executions wait until one does.{suggestion}"
