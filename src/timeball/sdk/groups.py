"""Chains and groups of calls, as programs write them, and the hold on one that was enqueued."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.current import OwnSlot
from timeball.domain.follow_ups import MAX_PARTS, GroupState, GroupStatus
from timeball.domain.values.ids import format_id
from timeball.domain.values.json_text import missing_result
from timeball.domain.values.wording import Duration, format_duration, parse_duration
from timeball.errors import ExecutionFailed, InvalidInput, PayloadError, ResultTimeout
from timeball.sdk.options import FollowUpCall

if TYPE_CHECKING:
    from timeball.domain.payload_references import CauseRecord
    from timeball.sdk.enqueue import EnqueueClient, SdkRuntime
    from timeball.store.db.database import CallerConnection

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2


class _Work:
    """What a chain and a group have in common: they follow a run, stand in each other, or are enqueued."""

    def __init__(self, enqueue_client: EnqueueClient) -> None:
        self._enqueue_client = enqueue_client

    def as_follow_up(self) -> dict[str, Any]:
        """As a job keeps it."""
        raise NotImplementedError

    def enqueue(self, *, connection: Any = None) -> GroupRun:
        """Enqueue all of it; it is committed when this returns, or written in the transaction of *connection*."""
        client = self._enqueue_client
        if (scope := client.inline_scope()) is not None:
            _check_connection(connection, "enqueue")
            return client.inline_runs.run_group(scope, *self._to_enqueue())
        work = partial(_begin, *self._to_enqueue())
        return self._run(client.call_within(connection, work, "enqueue"))

    async def aenqueue(self, *, connection: Any = None) -> GroupRun:
        """Like `enqueue`, for coroutines."""
        client = self._enqueue_client
        if (scope := client.inline_scope()) is not None:
            _check_connection(connection, "aenqueue")
            return await client.inline_runs.arun_group(scope, *self._to_enqueue())
        work = partial(_begin, *self._to_enqueue())
        return self._run(await client.acall_within(connection, work, "enqueue"))

    def _to_enqueue(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The work as a group, and the meta that all of its calls have beside their own."""
        work = self.as_follow_up()
        group = work if "group" in work else {"group": [work]}
        make_meta = self._enqueue_client.make_group_meta
        return group, None if make_meta is None else make_meta(len(group["group"]))

    def _run(self, group_id: UUID) -> GroupRun:
        return GroupRun(self._enqueue_client, group_id)


class Chain(_Work):
    """Calls that run one after the other, as long as each succeeds; made by `tb.chain(...)`."""

    def __init__(
        self, enqueue_client: EnqueueClient, steps: Sequence[FollowUpCall], on_failure: FollowUpCall | None = None
    ) -> None:
        super().__init__(enqueue_client)
        self._steps = _checked(steps, "chain")
        self._on_failure = on_failure

    def on_failure(self, call: FollowUpCall) -> Chain:
        """The same chain with a call that is made if one of its steps ends otherwise than by success."""
        return Chain(self._enqueue_client, self._steps, _checked([call], "on_failure")[0])

    def as_follow_up(self) -> dict[str, Any]:
        """As a job keeps it."""
        failure = {} if self._on_failure is None else {"on_failure": self._on_failure.as_follow_up()}
        return {"chain": [step.as_follow_up() for step in self._steps], **failure}


class Group(_Work):
    """Calls that run side by side, and what follows when all of them have ended; made by `tb.group(...)`."""

    def __init__(
        self,
        enqueue_client: EnqueueClient,
        parts: Sequence[FollowUpCall],
        then: FollowUpCall | None = None,
        on_failure: FollowUpCall | None = None,
    ) -> None:
        super().__init__(enqueue_client)
        self._parts = _checked(parts, "group")
        self._then = then
        self._on_failure = on_failure

    def then(self, call: FollowUpCall) -> Group:
        """The same group with what follows when all of its parts have succeeded: `then(join.call(tb.results))`."""
        return Group(self._enqueue_client, self._parts, _checked([call], "then")[0], self._on_failure)

    def on_failure(self, call: FollowUpCall) -> Group:
        """The same group with what follows when all of its parts have ended, and one of them otherwise than by success."""
        return Group(self._enqueue_client, self._parts, self._then, _checked([call], "on_failure")[0])

    def as_follow_up(self) -> dict[str, Any]:
        """As a job keeps it."""
        others = {"then": self._then, "on_failure": self._on_failure}
        return {
            "group": [part.as_follow_up() for part in self._parts],
            **{name: work.as_follow_up() for name, work in others.items() if work is not None},
        }


def _checked(steps: Iterable[Any], where: str) -> Sequence[FollowUpCall]:
    checked = list(steps)
    if not checked:
        raise InvalidInput(f"the {where} is empty, expected one or more calls: handler.call(...)", field=where)
    if len(checked) > MAX_PARTS:
        raise InvalidInput(f"the {where} has {len(checked):,} calls, expected at most {MAX_PARTS:,}", field=where)
    for step in checked:
        if not isinstance(step, FollowUpCall):
            kind = "a function" if callable(step) else type(step).__name__
            raise InvalidInput(
                f"{where} was given {kind}, expected calls that are not made yet: handler.call(...)", field=where
            )
    return checked


class GroupRun:
    """A group or chain that was enqueued: ask for its state and counts, wait for its results, or cancel it.

    A chain is a group with one part. Methods for coroutines have an `a` before their names.
    """

    def __init__(self, enqueue_client: EnqueueClient, group_id: UUID) -> None:
        self._background_loop = enqueue_client.background_loop
        self._group_id = group_id

    @property
    def id(self) -> str:
        """The id of the group, `grp_...`."""
        return format_id("grp", self._group_id)

    def status(self) -> GroupStatus:
        """How many parts there are, have succeeded and have failed; `open` until all have ended, then `succeeded` or `failed`."""
        return self._background_loop.call(self._status)

    async def astatus(self) -> GroupStatus:
        """Like `status`, for coroutines."""
        return await self._background_loop.acall(self._status)

    def results(self, timeout: Duration | None = None) -> list[Any]:
        """Wait until all parts have ended, and return what they returned, in their order; of a chain, what its last step returned.

        Raises ExecutionFailed if a part has not succeeded, and ResultTimeout if they have not ended within *timeout*. What follows the
        group is not waited for. A handler that waits here lends its slot to other executions meanwhile.
        """
        return self._background_loop.wait(partial(self._results, timeout, OwnSlot()))

    async def aresults(self, timeout: Duration | None = None) -> list[Any]:
        """Like `results`, for coroutines."""
        return await self._background_loop.acall(partial(self._results, timeout, OwnSlot()))

    def __await__(self) -> Generator[Any, None, list[Any]]:
        """`await group` is `await group.aresults()`."""
        return self.aresults().__await__()

    def cancel(self, reason: str | None = None) -> int:
        """Cancel what waits, and ask what runs to stop; returns how many runs that were. What follows a failure of the group follows."""
        return self._background_loop.call(partial(self._cancel, reason))

    async def acancel(self, reason: str | None = None) -> int:
        """Like `cancel`, for coroutines."""
        return await self._background_loop.acall(partial(self._cancel, reason))

    def __repr__(self) -> str:
        return f"<GroupRun {self.id}>"

    # in the background loop

    async def _status(self, runtime: SdkRuntime) -> GroupStatus:
        return await runtime.commands.groups.status(self._group_id)

    async def _cancel(self, reason: str | None, runtime: SdkRuntime) -> int:
        return await runtime.commands.groups.cancel(self._group_id, runtime.actor(reason))

    async def _results(self, timeout: Duration | None, slot: OwnSlot, runtime: SdkRuntime) -> list[Any]:
        seconds = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
        status = await self._status(runtime)
        if status.state is GroupState.OPEN:
            with slot.lent():
                status = await self._end_of(status, seconds, runtime)
        if status.state is GroupState.FAILED:
            raise ExecutionFailed(self.id, status.state.value, f"{status.failed} of {status.total} failed")
        results = orjson.loads(await runtime.commands.groups.results(self._group_id))
        why = missing_result(results)
        if why is not None:
            raise PayloadError(f"{self.id} has succeeded, but {why}", field="results")
        found: list[Any] = results
        return found

    async def _end_of(self, status: GroupStatus, seconds: float | None, runtime: SdkRuntime) -> GroupStatus:
        clock = asyncio.get_running_loop().time
        started, pause = clock(), _FIRST_PAUSE
        while status.state is GroupState.OPEN:
            if seconds is not None and clock() - started >= seconds:
                span = format_duration(parse_duration(seconds))
                raise ResultTimeout(f"after {span} {self.id} waits for {status.waits_for} of {status.total}")
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
            status = await self._status(runtime)
        return status


class InlineGroupRun(GroupRun):
    """A group or chain that was made inline: it has ended when `enqueue` returns it."""

    def __init__(self, client: EnqueueClient, status: GroupStatus, end: CauseRecord) -> None:
        super().__init__(client, status.id)
        self._final_status = status
        self._end = end

    def status(self) -> GroupStatus:
        return self._final_status

    async def astatus(self) -> GroupStatus:
        return self._final_status

    def results(self, timeout: Duration | None = None) -> list[Any]:
        if self._end.result is None:
            raise ExecutionFailed(self.id, self._final_status.state.value, self._end.error)
        results: list[Any] = orjson.loads(self._end.result)
        return results

    async def aresults(self, timeout: Duration | None = None) -> list[Any]:
        return self.results()

    def cancel(self, reason: str | None = None) -> int:
        """0: everything has ended."""
        return 0

    async def acancel(self, reason: str | None = None) -> int:
        return 0


def _check_connection(connection: Any, verb: str) -> None:
    """Refuse inline what would be refused where there is a database."""
    if connection is not None:
        from timeball.sdk.transactions import check_connection

        check_connection(connection, verb)


async def _begin(
    work: dict[str, Any], meta: dict[str, Any] | None, runtime: SdkRuntime, connection: CallerConnection | None
) -> UUID:
    return await runtime.commands.groups.begin(work, connection=connection, meta=meta)
