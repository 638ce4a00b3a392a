"""Every move of an execution between the state tables: promote, claim, finish, unblock, stop, rescue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.execution import ClaimedExecution, ClaimKey, FinishedAttempt
from timeball.domain.lifecycle import AttemptFacts, Decision, Postpone
from timeball.domain.policies import SkipReason
from timeball.domain.scheduling.occurrences import DueKey, DueRow, HeldByFreeze, NextOccurrence, Promotion
from timeball.domain.trace import with_trace
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId, shard_of
from timeball.domain.wakeup import Lane, LanePosition, Wakeup
from timeball.store.db.columns import (
    is_recorded,
    json_text,
    lane_arrays,
    promotion_arrays,
    result_column,
    transition_columns,
)
from timeball.store.db.pool import REFUSED, Connection, unwritable_content
from timeball.store.db.rows import claimed_from, claims_from, delivery_from, due_row_from, retry_policy_from
from timeball.store.types import (
    PARKED_AT,
    ClaimRequest,
    ClaimResult,
    OrphanedClaim,
    ReadyExecution,
    ShardOwnership,
    TicketClaimResult,
)

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier

SUPERSEDED_REASON = "superseded by the next occurrence"

# PostgreSQL plans a prepared statement for its values five times, before it considers one plan for all values.
_WARM_UP_CLAIMS = 6


class ExecutionStore:
    """Moves executions between the state tables. Each move is one statement; a move that counts a limit locks it first."""

    def __init__(self, database: Database, notifier: Notifier, shards: int) -> None:
        self._database = database
        self._notifier = notifier
        self._shards = shards

    # `due` to `ready`: a scheduler reads due rows, plans their promotion, and promotes them

    async def look_ahead(self, bounds: Mapping[int, datetime], horizon: timedelta, limit: int) -> list[DueKey]:
        """The keys of rows that are due within the horizon, from the bound of each shard on: the first *limit* of each shard."""
        rows = await self._database.fetch(
            "look_ahead", shards=list(bounds), bounds=list(bounds.values()), horizon=horizon, limit=limit
        )
        return [DueKey._make(row) for row in rows]

    async def due_rows(self, ids: Sequence[ExecutionId]) -> list[DueRow]:
        """These rows of `due`, in no order; rows that are gone are missing."""
        return [due_row_from(row) for row in await self._database.fetch("due_rows", ids=list(ids))]

    async def busy_jobs(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """The jobs that have an unfinished execution which is no longer only scheduled."""
        rows = await self._database.fetch("busy_jobs", job_ids=list(job_ids))
        return {JobId(row["job_id"]) for row in rows}

    async def promote(
        self,
        promotions: Sequence[Promotion],
        ownership: ShardOwnership,
        promotion_window: timedelta,
        tzdata: str,
        freeze_epoch: int = 0,
    ) -> set[ExecutionId]:
        """Promote these rows of `due` as planned, each only if it still is as it was read; returns the promoted ones.

        A row that a transaction is changing is not promoted, and not waited for: the transaction may be a program's own, and take long.
        Deleting the row and inserting its successor is one statement, so no occurrence is recorded twice, and none is left out.
        Nothing is promoted if the freezes have another epoch than the plans.
        A promotion that replaces what waits is the only one of its job in a call.
        """
        rows = await self._database.fetch(
            "promote",
            **promotion_arrays(promotions, self._database.env.new_id),
            promotion_window=promotion_window,
            shards=list(ownership.epochs),
            epochs=list(ownership.epochs.values()),
            incarnation=ownership.incarnation,
            tzdata=tzdata,
            freeze_epoch=freeze_epoch,
        )
        done = {ExecutionId(row["id"]) for row in rows}
        await self._after_promotion([promotion for promotion in promotions if promotion.row.id in done])
        return done

    async def _after_promotion(self, promotions: Sequence[Promotion]) -> None:
        wakeup = Wakeup()
        limits = {
            promotion.row.limit_key
            for promotion in promotions
            if promotion.row.limit_key is not None and promotion.runs
        }
        for promotion in promotions:
            for run in promotion.runs:
                wakeup.add_lane(promotion.row.queue, promotion.row.priority, run.run_at, 1)
        self._notifier.tell(wakeup)
        superseded = [promotion.row.job_id for promotion in promotions if promotion.stop_running]
        if superseded:
            await self.stop_jobs(superseded, SUPERSEDED_REASON)
        if limits:
            await self.unblock(sorted(limits))

    async def hold_frozen(self, rows: Sequence[HeldByFreeze], freeze_epoch: int) -> set[ExecutionId]:
        """Let these rows wait for the end of a freeze, each only if it still is as it was read; returns those that wait now.

        As `promote`: nothing is written if the freezes have another epoch than the plans.
        """
        in_order = sorted(rows, key=lambda held: held.row.id.int)
        found = await self._database.fetch(
            "hold_frozen",
            ids=[held.row.id for held in in_order],
            run_ats=[held.row.run_at for held in in_order],
            versions=[held.row.version for held in in_order],
            untils=[held.until for held in in_order],
            freeze_epoch=freeze_epoch,
        )
        return {ExecutionId(row["id"]) for row in found}

    async def park(self, rows: Sequence[DueRow]) -> None:
        """Park retries and snoozes until their job is resumed, if it still is paused."""
        await self._database.fetch(
            "park",
            parked_at=PARKED_AT,
            job_ids=sorted({row.job_id for row in rows}),
            ids=[row.id for row in rows],
            run_ats=[row.run_at for row in rows],
        )

    async def occurrences_of_other_tzdata(self, shards: Sequence[int], tzdata: str, limit: int) -> list[DueRow]:
        """Pending occurrences that were computed with older time-zone data than these."""
        rows = await self._database.fetch(
            "occurrences_of_other_tzdata", shards=list(shards), tzdata=tzdata, limit=limit
        )
        return [due_row_from(row) for row in rows]

    async def move_occurrence(self, row: DueRow, fresh: NextOccurrence) -> bool:
        """Replace a pending occurrence by another instant, if it still is as it was read."""
        moved = await self._database.fetch(
            "move_occurrence",
            id=row.id,
            run_at=row.run_at,
            version=row.version,
            next_id=fresh.id,
            next_run_at=fresh.run_at,
            next_for=fresh.scheduled_for,
            tzdata=fresh.tzdata,
        )
        return bool(moved)

    async def end_occurrence(self, row: DueRow, tzdata: str) -> bool:
        """Record a pending occurrence as skipped because these data yield none, if it still is as it was read."""
        ended = await self._database.fetch(
            "end_occurrence",
            id=row.id,
            run_at=row.run_at,
            version=row.version,
            tzdata=tzdata,
            reason=SkipReason.ENDED.value,
        )
        return bool(ended)

    # `ready` to `running`: the worker makes the id of each claim, by which a lost reply is read back

    async def lanes(self) -> dict[Lane, tuple[LanePosition, bool]]:
        """Every lane with ready executions, the most urgent first: the position of its first, and whether its queue is limited."""
        rows = sorted(await self._database.fetch("lanes"), key=lambda row: (row["queue"], -row["priority"]))
        return {
            (row["queue"], row["priority"]): (LanePosition(row["run_at"], row["id"]), row["is_limited"]) for row in rows
        }

    async def has_unclaimed(self, lanes: Mapping[Lane, datetime], handlers: Sequence[str], age: timedelta) -> bool:
        """Whether the first execution of one of these lanes, from its instant on, has been ready for *age* without being claimed."""
        positions = {lane: LanePosition(run_at) for lane, run_at in lanes.items()}
        has_unclaimed: bool = await self._database.fetch_value(
            "has_unclaimed", **lane_arrays(positions), handlers=handlers, age=age
        )
        return has_unclaimed

    async def claim(
        self,
        request: ClaimRequest,
        lanes: Mapping[Lane, LanePosition],
        claim_id: ClaimId,
        connection: Connection | None = None,
    ) -> ClaimResult:
        """Give up to *slots* due executions of these lanes to one worker, the most urgent first, and up to *holds* that come next.

        Each lane is read from its position on. No two workers are ever given the same execution. Paused and limited queues give nothing.
        """
        limit = request.slots + request.holds
        return await self._claim(request, lanes, claim_id, limit, is_limited=False, connection=connection)

    async def claim_limited(
        self, request: ClaimRequest, queue: str, lanes: Mapping[Lane, LanePosition], claim_id: ClaimId
    ) -> ClaimResult:
        """The same for one limited queue: its row is locked first, so that the count is exact across all workers."""

        async def work(connection: Connection) -> ClaimResult:
            limit = await self._database.fetch_value("lock_queue", connection, queue=queue)
            if limit is None:
                return ClaimResult([], is_contended=False)
            running = await self._database.fetch_value("count_running_of_queue", connection, queue=queue)
            free = limit - running
            if free <= 0:
                return ClaimResult([], is_contended=False, is_at_limit=True)
            narrowed = replace(request, slots=min(request.slots, free), holds=min(request.holds, free))
            claims = await self._claim(narrowed, lanes, claim_id, free, is_limited=True, connection=connection)
            return replace(claims, is_at_limit=len(claims.executions) == free)

        claims: ClaimResult = await self._database.repeat(work)
        return claims

    async def _claim(
        self,
        request: ClaimRequest,
        lanes: Mapping[Lane, LanePosition],
        claim_id: ClaimId,
        limit: int,
        *,
        is_limited: bool,
        connection: Connection | None = None,
    ) -> ClaimResult:
        rows = await self._database.fetch(
            "claim",
            connection,
            **lane_arrays(lanes),
            is_limited=is_limited,
            unclaimed_for=request.unclaimed_for,
            handlers=request.handlers,
            slots=request.slots,
            lane_limit=2 * request.slots if request.has_competitors else request.slots,
            holds=request.holds,
            limit=limit,
            incarnation=request.incarnation,
            claim_id=claim_id,
        )
        return ClaimResult(claims_from(rows, claim_id), rows[0]["is_contended"])

    async def claim_by_id(
        self,
        request: ClaimRequest,
        execution_id: ExecutionId,
        queues: Sequence[str] | None,
        claim_id: ClaimId,
        connection: Connection | None = None,
    ) -> list[ClaimedExecution]:
        """Give this execution to one worker, if it is ready and due and the worker may run it. Paused and limited queues give nothing."""
        rows = await self._database.fetch(
            "claim_by_id",
            connection,
            id=execution_id,
            is_limited=False,
            handlers=request.handlers,
            queues=queues,
            incarnation=request.incarnation,
            claim_id=claim_id,
        )
        return claims_from(rows, claim_id)

    async def read_back_claim(self, incarnation: Incarnation, claim_id: ClaimId) -> list[ClaimedExecution]:
        """The executions of a claim whose reply was lost."""
        rows = await self._database.fetch("read_back_claim", incarnation=incarnation, claim_id=claim_id)
        return [ClaimedExecution._make(tuple(row)) for row in rows]

    async def claim_keys(self, incarnation: Incarnation) -> set[ClaimKey]:
        """Every execution that this worker holds by the database, with its claim."""
        rows = await self._database.fetch("claim_keys", incarnation=incarnation)
        return {(ExecutionId(row["id"]), ClaimId(row["claim_id"])) for row in rows}

    async def mark_queue_limited(self, connection: Connection | None = None) -> None:
        """Make executions count for the limit of their queue that were claimed before the queue was limited."""
        await self._database.fetch("mark_queue_limited", connection)

    async def warm_up(self) -> None:
        """Claim from a queue that cannot exist, and finish nothing, until every idle connection has its plans.

        The first claim on a connection takes ten times as long as later ones, because the driver reads the types of all arrays.
        """
        if not self._database.behind_pgbouncer:
            await self._database.on_each_idle(self._warm_up_on)

    async def _warm_up_on(self, connection: Connection) -> None:
        env = self._database.env
        request = ClaimRequest(Incarnation(env.new_id()), [""], slots=1, holds=1)
        # A claim with *unclaimed_for* runs other statements of the functions, for one lane and for several; each is planned once.
        patient = replace(request, unclaimed_for=timedelta(seconds=1))
        for asked, lanes in (*[(request, 1)] * _WARM_UP_CLAIMS, (patient, 1), (patient, 2)):
            positions = {("", priority): LanePosition(env.clock.now()) for priority in range(lanes)}
            await self.claim(asked, positions, ClaimId(env.new_id()), connection)
            await self.claim_by_id(asked, ExecutionId(env.new_id()), None, ClaimId(env.new_id()), connection)
            await self.finish_succeeded([], connection)

    # `running` to `finished`, or back: written only while the row still names the claim

    async def finish_succeeded(
        self, findings: Sequence[FinishedAttempt], connection: Connection | None = None
    ) -> list[FinishedAttempt]:
        """Record successes, each only while its row still names the claim; returns the stale ones, which were refused."""
        # The statement locks rows in this order. By bytes: the database sorts so, and comparing the ids themselves takes long.
        in_order = sorted(findings, key=lambda f: f.claimed.id.bytes)
        with unwritable_content():
            row = await self._database.fetch_row(
                "finish_succeeded",
                connection,
                ids=[f.claimed.id for f in in_order],
                fences=[f.claimed.fence for f in in_order],
                claim_ids=[f.claimed.claim_id for f in in_order],
                started=[f.started_at for f in in_order],
                finished=[f.finished_at for f in in_order],
                results=result_column(in_order),
            )
        assert row is not None
        if row["freed"]:
            await self.unblock_after_commit(row["freed"])
        if row["followed"]:
            await self.announce_follow_ups(row["followed"])
        if row["accepted_count"] == len(findings):
            return []
        return _stale(findings, {(id_, claim_id) for id_, claim_id in row["accepted"] or ()})

    async def attempt_facts(self, claims: Sequence[ClaimedExecution]) -> dict[ExecutionId, AttemptFacts]:
        """The facts that `decide` needs about these claims; stale ones are missing."""
        rows = await self._database.fetch(
            "attempt_facts",
            ids=[claimed.id for claimed in claims],
            fences=[claimed.fence for claimed in claims],
            claim_ids=[claimed.claim_id for claimed in claims],
        )
        return {
            ExecutionId(row["id"]): AttemptFacts(
                attempts=row["attempts"],
                lost=row["lost"],
                retry=retry_policy_from(row),
                delivery=delivery_from(row["at_most_once"]),
                stop=row["stop"],
                is_paused=row["is_paused"],
                is_deleted=row["is_deleted"],
            )
            for row in rows
        }

    async def record_transitions(self, moves: Sequence[Decision]) -> list[FinishedAttempt]:
        """Move executions to where `decide` has sent them; returns those that stayed where they were.

        A row moves only while it names the claim, and while the facts of the decision hold: a request to stop, a pause or a deletion
        in between keeps it where it is.
        """
        with unwritable_content():
            rows = await self._database.fetch(
                "record_transitions", transitions=json_text(transition_columns(move, self._shards) for move in moves)
            )
        refused = _stale([move.attempt for move in moves], {(row["id"], row["claim_id"]) for row in rows})
        await self._after_transitions(rows, [move for move in moves if move.attempt not in refused])
        return refused

    async def _after_transitions(self, rows: Sequence[Any], moves: Sequence[Decision]) -> None:
        wakeup = Wakeup()
        for row in rows:
            if row["target"] == "ready":
                # Without a number: a worker without a free slot has released it, and any other may take it.
                wakeup.add_lane(row["queue"], row["priority"], row["run_at"])
        for finding, _, transition in moves:
            if isinstance(transition, Postpone):
                wakeup.add_shard(shard_of(finding.claimed.job_id, self._shards), transition.run_at)
        self._notifier.tell(wakeup)
        freed = sorted({row["limit_key"] for row in rows if row["limit_key"] is not None and row["target"] != "ready"})
        await self.unblock_after_commit(freed)
        await self.announce_follow_ups([row["id"] for row in rows if row["is_followed"]])

    async def find_stale(self, findings: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        """The outcomes that are truly stale: the others were recorded by an earlier write whose reply was lost."""
        rows = await self._database.fetch(
            "already_recorded",
            ids=[finding.claimed.id for finding in findings],
            claim_ids=[finding.claimed.claim_id for finding in findings],
        )
        recorded = {(row["id"], row["claim_id"]): (row["state"], row["outcome"]) for row in rows}
        return [f for f in findings if not is_recorded(f.outcome, *recorded[f.claimed.id, f.claimed.claim_id])]

    async def report_progress(self, claimed: ClaimedExecution, progress: float, note: str | None) -> None:
        """Store the progress of an attempt, while its row still names the claim."""
        with unwritable_content():
            await self._database.fetch(
                "report_progress",
                id=claimed.id,
                fence=claimed.fence,
                claim_id=claimed.claim_id,
                progress=progress,
                note=note,
            )

    async def write_traces(self, traces: Mapping[ClaimedExecution, Mapping[str, str]]) -> None:
        """Keep traces with the executions whose attempts have begun them, each while its row still names the claim."""
        in_order = sorted(traces, key=lambda claimed: claimed.id.bytes)
        await self._database.fetch(
            "write_traces",
            ids=[claimed.id for claimed in in_order],
            fences=[claimed.fence for claimed in in_order],
            claim_ids=[claimed.claim_id for claimed in in_order],
            traces=[orjson.dumps(with_trace(None, traces[claimed])).decode() for claimed in in_order],
        )

    async def extend_deadline(self, claimed: ClaimedExecution, span: timedelta) -> None:
        """Let an attempt run so much longer from now before the reaper ends it, while its row still names the claim."""
        await self._database.fetch(
            "extend_deadline", id=claimed.id, fence=claimed.fence, claim_id=claimed.claim_id, span=span
        )

    async def orphans(self, limit: int) -> list[OrphanedClaim]:
        """Running executions without a living holder, and those past their deadline."""
        rows = sorted(await self._database.fetch("orphaned_claims", limit=limit))
        return [
            OrphanedClaim(
                claimed=claimed_from(row),
                holder=Incarnation(row["holder"]),
                claimed_at=row["claimed_at"],
                is_orphan=row["is_orphan"],
            )
            for row in rows
        ]

    # waiting to `finished`

    async def expire_waiting(self, limit: int) -> dict[ExecutionId, JobId]:
        """Record waiting executions that have not begun in time as skipped, up to *limit* of each table; returns them with their jobs.

        Their unique keys are free with the same statement, and their places are passed on after it.
        """
        rows = await self._database.fetch("expire_waiting", limit=limit, reason=SkipReason.EXPIRED.value)
        await self.unblock_after_commit(sorted({row["limit_key"] for row in rows if row["limit_key"] is not None}))
        await self.announce_follow_ups([row["id"] for row in rows if row["is_followed"]])
        return {ExecutionId(row["id"]): JobId(row["job_id"]) for row in rows}

    # `blocked` to `ready`, and requests to stop

    async def unblock(self, keys: Sequence[str]) -> None:
        """Move blocked executions of these limits to `ready` while there are free places."""

        async def work(connection: Connection) -> list[Any]:
            await self._database.fetch("lock_limits", connection, keys=list(keys))
            return await self._database.fetch("unblock", connection, keys=list(keys))

        wakeup = Wakeup()
        for row in await self._database.repeat(work):
            wakeup.add_lane(row["queue"], row["priority"], row["run_at"], 1)
        self._notifier.tell(wakeup)

    async def unblock_after_commit(self, keys: Sequence[str]) -> None:
        """Unblock after another commit. A failure here must not look like one of that commit; the reaper repeats it every few seconds."""
        if keys:
            with suppress(*REFUSED):
                await self.unblock(keys)

    async def announce_placed(self, rows: Sequence[Any], *, is_ready_announced: bool) -> None:
        """Wake workers and schedulers for new rows, and unblock those whose limit has a free place."""
        wakeup = Wakeup()
        for row in rows:
            if row["state_table"] == "ready" and not is_ready_announced:
                wakeup.add_lane(row["queue"], row["priority"], row["run_at"], 1, row["execution_id"])
            elif row["state_table"] == "due":
                wakeup.add_shard(row["shard"], row["run_at"])
        self._notifier.tell(wakeup)
        await self.unblock_after_commit(sorted({row["limit_key"] for row in rows if row["state_table"] == "blocked"}))

    async def announce_follow_ups(self, causes: Sequence[UUID]) -> None:
        """Wake workers for what follows executions that have ended, or groups of which parts have.

        The statements that ended them have written it.
        """
        if not causes:
            return
        causes = sorted(causes)
        # A failure here must not look like one of the statement before it: workers find the rows with their next poll.
        # The reaper closes the groups.
        with suppress(*REFUSED):
            await self._database.fetch("close_ended_groups", causes=causes)
            rows = await self._database.fetch("placed_follow_ups", causes=causes)
            await self.announce_placed(rows, is_ready_announced=False)

    async def blocked_keys(self, after: str, limit: int) -> list[str]:
        """The limits that blocked executions wait for, in order: the first few after one of them."""
        rows = await self._database.fetch("blocked_keys", after=after, limit=limit)
        return [row["limit_key"] for row in rows]

    async def stop(self, ids: Sequence[ExecutionId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these executions to stop; returns those that are running."""
        return self._wake_holders(await self._database.fetch("request_stop", ids=list(ids), reason=reason))

    async def stop_jobs(self, job_ids: Sequence[JobId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these jobs' executions to stop."""
        rows = await self._database.fetch("request_stop_of_jobs", job_ids=list(job_ids), reason=reason)
        return self._wake_holders(rows)

    async def stop_superseded_executions(self, keys: Sequence[str]) -> set[ExecutionId]:
        """Ask for a stop of executions whose job has overlap `cancel_running`, if a later occurrence waits for one of these limits."""
        rows = await self._database.fetch("request_stop_of_superseded", keys=list(keys), reason=SUPERSEDED_REASON)
        return self._wake_holders(rows)

    def _wake_holders(self, rows: Sequence[Any]) -> set[ExecutionId]:
        wakeup = Wakeup()
        wakeup.add_holders(row["holder"] for row in rows)
        self._notifier.tell(wakeup)
        return {ExecutionId(row["id"]) for row in rows}

    async def stops(self, incarnation: Incarnation) -> dict[ExecutionId, str]:
        """The executions that this holder has been asked to stop, with the reason."""
        rows = await self._database.fetch("stops", incarnation=incarnation)
        return {ExecutionId(row["id"]): row["stop"] for row in rows}


def _stale(findings: Sequence[FinishedAttempt], accepted: Set[tuple[UUID, UUID]]) -> list[FinishedAttempt]:
    """By claim, not by execution: a batch may have a stale and a valid outcome of one execution."""
    return [f for f in findings if (f.claimed.id, f.claimed.claim_id) not in accepted]


class TicketStore:
    """Reads ready executions for tickets, and claims by tickets. Tickets prove nothing: every rule of claims is checked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, lanes: Mapping[Lane, datetime], handlers: Sequence[str], limit: int) -> list[ReadyExecution]:
        """The most urgent executions of these lanes, each from its bound on: *limit* for each queue, none of paused and limited ones."""
        rows = await self._database.fetch(
            "read_tickets",
            queues=[queue for queue, _ in lanes],
            priorities=[priority for _, priority in lanes],
            bounds=list(lanes.values()),
            handlers=list(handlers),
            limit=limit,
        )
        return [
            ReadyExecution(ExecutionId(row["id"]), row["queue"], row["rank"], row["handler"], row["fence"])
            for row in rows
        ]

    async def claim(
        self, request: ClaimRequest, ids: Sequence[ExecutionId], queues: Sequence[str] | None, claim_id: ClaimId
    ) -> TicketClaimResult:
        """Give those of the executions to one worker that are ready, that it may run, and for which it has slots.

        No two workers are ever given the same execution. Paused and limited queues give nothing.
        """
        rows = await self._database.fetch(
            "claim_tickets",
            is_limited=False,
            ids=list(dict.fromkeys(ids)),
            handlers=request.handlers,
            queues=queues,
            slots=max(request.slots, 0),
            holds=request.holds,
            incarnation=request.incarnation,
            claim_id=claim_id,
        )
        return TicketClaimResult(claims_from(rows, claim_id), [ExecutionId(id_) for id_ in rows[0]["left_ids"] or ()])

    async def namespace(self) -> str:
        """A short name of this database, different from any other that may use the same broker."""
        text: str = await self._database.fetch_value("read_namespace")
        return blake2b(text.encode(), digest_size=6).hexdigest()
