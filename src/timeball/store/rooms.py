"""The moves between rooms: hoist, claim, finish, promote, reap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

from timeball.domain.execution import (
    Cancelled,
    Claimed,
    Failed,
    Finding,
    Lost,
    NotDropped,
    Outcome,
    Released,
    Snoozed,
    Stake,
    Succeeded,
    TimedOut,
)
from timeball.domain.hints import Hints, Lane
from timeball.domain.ids import ClaimId, ExecutionId, Incarnation, JobId, shard_of
from timeball.domain.lifecycle import Finish, Requeue, Standing, Transition, Wait
from timeball.domain.occurrences import DueRow, Hoist, NextOccurrence
from timeball.store.database import Connection, Database
from timeball.store.hinter import Hinter
from timeball.store.rows import claims_from, delivery_from, due_row_from, hoist_arrays, json_text, retry_policy_from

# Rows that wait for a person, not for a time: the scheduler never looks that far.
PARKED_AT = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The shards a scheduler owns, each with the epoch of its acquisition."""

    incarnation: Incarnation
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClaimWish:
    """What a worker can take: whose handlers, how many due now, how many to hold; of what is due, only what has waited so long.

    *has_rivals*: others are likely to be taking the same rows just now, so it looks at more than it wants.
    """

    incarnation: Incarnation
    handlers: Sequence[str]
    slots: int
    holds: int
    unclaimed_for: timedelta = timedelta(0)
    has_rivals: bool = True


@dataclass(frozen=True, slots=True)
class Claims:
    """What a worker was given. *is_contended*: others were just taking more. *is_at_limit*: the queue has no place left."""

    executions: list[Claimed]
    is_contended: bool
    is_at_limit: bool = False


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running row whose holder is dead, or whose deadline has passed."""

    claimed: Claimed
    holder: Incarnation
    claimed_at: datetime
    is_orphan: bool


class Rooms:
    """Every move of an execution. Each is one statement; those that count a limit lock it first."""

    def __init__(self, database: Database, hinter: Hinter, shards: int) -> None:
        self._database = database
        self._hinter = hinter
        self._shards = shards

    # due ─► ready

    async def look_ahead(self, bounds: Mapping[int, datetime], horizon: timedelta, limit: int) -> list[DueRow]:
        """The rows of these shards, from each one's bound on, that fall due within the horizon: at most *limit* a shard."""
        rows = await self._database.fetch(
            "look_ahead", shards=list(bounds), bounds=list(bounds.values()), horizon=horizon, limit=limit
        )
        return [due_row_from(row) for row in rows]

    async def busy_jobs(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Those of the jobs that have an unfinished execution which is no longer only scheduled."""
        rows = await self._database.fetch("busy_jobs", job_ids=list(job_ids))
        return {JobId(row["job_id"]) for row in rows}

    async def hoist(
        self, hoists: Sequence[Hoist], ownership: Ownership, hoist_window: timedelta, tzdata: str
    ) -> set[ExecutionId]:
        """Do what was planned for these rows of `due`, each only if it still is as it was read; returns those done.

        Taking the row and writing its successor are one statement: no occurrence can be recorded twice, none can fall between.
        """
        rows = await self._database.fetch(
            "hoist",
            **hoist_arrays(hoists, self._database.env.new_id),
            hoist_window=hoist_window,
            shards=list(ownership.epochs),
            epochs=list(ownership.epochs.values()),
            incarnation=ownership.incarnation,
            tzdata=tzdata,
        )
        done = {ExecutionId(row["id"]) for row in rows}
        await self._after_hoist([hoist for hoist in hoists if hoist.row.id in done])
        return done

    async def _after_hoist(self, hoists: Sequence[Hoist]) -> None:
        hints = Hints()
        limits = {hoist.row.limit_key for hoist in hoists if hoist.row.limit_key is not None and hoist.runs}
        for hoist in hoists:
            for run in hoist.runs:
                hints.add_lane(hoist.row.queue, hoist.row.priority, run.run_at)
        self._hinter.tell(hints)
        superseded = [hoist.row.job_id for hoist in hoists if hoist.stop_running]
        if superseded:
            await self.stop_jobs(superseded, "superseded by the next occurrence")
        if limits:
            await self.promote(sorted(limits))

    async def park(self, rows: Sequence[DueRow]) -> None:
        """Let waiting retries and snoozes wait until their job is resumed, if it still is paused."""
        await self._database.fetch(
            "park",
            parked_at=PARKED_AT,
            job_ids=sorted({row.job_id for row in rows}),
            ids=[row.id for row in rows],
            run_ats=[row.run_at for row in rows],
        )

    async def occurrences_of_other_tzdata(self, shards: Sequence[int], tzdata: str, limit: int) -> list[DueRow]:
        """Pending occurrences that were computed by older time-zone data than ours."""
        rows = await self._database.fetch(
            "occurrences_of_other_tzdata", shards=list(shards), tzdata=tzdata, limit=limit
        )
        return [due_row_from(row) for row in rows]

    async def move_occurrence(self, row: DueRow, fresh: NextOccurrence) -> bool:
        """Put another instant in the place of a pending occurrence, if that is still as it was read."""
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

    # ready ─► running

    async def lanes(self) -> dict[Lane, tuple[datetime, bool]]:
        """Every lane that has something ready, with its first instant and whether its queue is limited."""
        rows = await self._database.fetch("lanes")
        return {(row["queue"], row["priority"]): (row["run_at"], row["is_limited"]) for row in rows}

    async def claim(self, wish: ClaimWish, lanes: Mapping[Lane, datetime], claim_id: ClaimId) -> Claims:
        """Give up to *slots* due executions of these lanes to one worker, most urgent first, and up to *holds* that come next.

        Each lane is read from its bound on. No two workers are ever given the same execution. Paused and limited queues give nothing here.
        """
        return await self._claim(wish, lanes, claim_id, wish.slots + wish.holds, is_limited=False)

    async def claim_limited(
        self, wish: ClaimWish, queue: str, lanes: Mapping[Lane, datetime], claim_id: ClaimId
    ) -> Claims:
        """The same for one queue that has a limit: its row is locked first, so that the count is exact across all workers."""

        async def work(connection: Connection) -> Claims:
            limit = await self._database.fetch_value("lock_queue", connection, queue=queue)
            if limit is None:
                return Claims([], is_contended=False)
            running = await self._database.fetch_value("count_running_of_queue", connection, queue=queue)
            free = limit - running
            if free <= 0:
                return Claims([], is_contended=False, is_at_limit=True)
            narrowed = replace(wish, slots=min(wish.slots, free), holds=min(wish.holds, free))
            claims = await self._claim(narrowed, lanes, claim_id, free, is_limited=True, connection=connection)
            return replace(claims, is_at_limit=len(claims.executions) == free)

        claims: Claims = await self._database.repeat(work)
        return claims

    async def _claim(
        self,
        wish: ClaimWish,
        lanes: Mapping[Lane, datetime],
        claim_id: ClaimId,
        most: int,
        *,
        is_limited: bool,
        connection: Connection | None = None,
    ) -> Claims:
        rows = await self._database.fetch(
            "claim",
            connection,
            queues=[queue for queue, _ in lanes],
            priorities=[priority for _, priority in lanes],
            bounds=list(lanes.values()),
            is_limited=is_limited,
            unclaimed_for=wish.unclaimed_for,
            handlers=wish.handlers,
            slots=wish.slots,
            looks=2 * wish.slots if wish.has_rivals else wish.slots,
            holds=wish.holds,
            most=most,
            incarnation=wish.incarnation,
            claim_id=claim_id,
        )
        return Claims(claims_from(rows, claim_id), rows[0]["is_contended"])

    async def read_back_claim(self, incarnation: Incarnation, claim_id: ClaimId) -> list[Claimed]:
        """What a claim gave this worker, when the reply to it was lost."""
        rows = await self._database.fetch("read_back_claim", incarnation=incarnation, claim_id=claim_id)
        return [Claimed._make(tuple(row)) for row in rows]

    async def stakes(self, incarnation: Incarnation) -> set[Stake]:
        """Everything that stands in a worker's name, each with its claim."""
        rows = await self._database.fetch("stakes", incarnation=incarnation)
        return {(ExecutionId(row["id"]), ClaimId(row["claim_id"])) for row in rows}

    async def mark_queue_limited(self, connection: Connection | None = None) -> None:
        """Count what was claimed before its queue was limited."""
        await self._database.fetch("mark_queue_limited", connection)

    # running ─► finished, due, ready

    async def finish_succeeded(self, findings: Sequence[Finding]) -> list[Finding]:
        """Record successes, each only while its row still names the claim; returns those that were refused as stale."""
        row = await self._database.fetch_row(
            "finish_succeeded",
            ids=[f.claimed.id for f in findings],
            fences=[f.claimed.fence for f in findings],
            claim_ids=[f.claimed.claim_id for f in findings],
            started=[f.started_at for f in findings],
            finished=[f.finished_at for f in findings],
            results=_results(findings),
        )
        assert row is not None
        if row["freed"]:
            await self.promote(row["freed"])
        if row["accepted_count"] == len(findings):
            return []
        return _refused(findings, {(id_, claim_id) for id_, claim_id in row["accepted"] or ()})

    async def standings(self, claims: Sequence[Claimed]) -> dict[ExecutionId, Standing]:
        """What `decide` must know of these claims; those that are stale are missing."""
        rows = await self._database.fetch(
            "standings", ids=[claimed.id for claimed in claims], claim_ids=[claimed.claim_id for claimed in claims]
        )
        return {
            ExecutionId(row["id"]): Standing(
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

    async def record_transitions(self, moves: Sequence[tuple[Finding, Transition]]) -> list[Finding]:
        """Move executions to where `decide` sent them, each only while its row still names the claim; returns the stale ones."""
        rows = await self._database.fetch(
            "record_transitions",
            transitions=json_text(
                _transition_columns(finding, transition, self._shards) for finding, transition in moves
            ),
        )
        refused = _refused([finding for finding, _ in moves], {(row["id"], row["claim_id"]) for row in rows})
        await self._after_transitions(rows, [(f, t) for f, t in moves if f not in refused])
        return refused

    async def _after_transitions(self, rows: Sequence[Any], moves: Sequence[tuple[Finding, Transition]]) -> None:
        hints = Hints()
        for row in rows:
            if row["target"] == "ready":
                hints.add_lane(row["queue"], row["priority"], row["run_at"])
        for finding, transition in moves:
            if isinstance(transition, Wait):
                hints.add_shard(shard_of(finding.claimed.job_id, self._shards), transition.run_at)
        self._hinter.tell(hints)
        freed = sorted({row["limit_key"] for row in rows if row["limit_key"] is not None and row["target"] != "ready"})
        if freed:
            await self.promote(freed)

    async def not_yet_recorded(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those of the findings that are truly stale: for the others an earlier write, whose reply was lost, did its work."""
        rows = await self._database.fetch(
            "already_recorded",
            ids=[finding.claimed.id for finding in findings],
            claim_ids=[finding.claimed.claim_id for finding in findings],
        )
        known = {(row["id"], row["claim_id"]): (row["state"], row["outcome"]) for row in rows}
        return [f for f in findings if not _is_recorded(f.outcome, *known[f.claimed.id, f.claimed.claim_id])]

    async def report_progress(self, claimed: Claimed, progress: float, note: str | None) -> None:
        """Note how far an attempt has come, while its row still names the claim."""
        await self._database.fetch(
            "report_progress",
            id=claimed.id,
            fence=claimed.fence,
            claim_id=claimed.claim_id,
            progress=progress,
            note=note,
        )

    # blocked ─► ready

    async def promote(self, keys: Sequence[str]) -> None:
        """Let blocked executions of these limits into `ready` while there are places."""

        async def work(connection: Connection) -> list[Any]:
            await self._database.fetch("lock_limits", connection, keys=list(keys))
            return await self._database.fetch("promote", connection, keys=list(keys))

        hints = Hints()
        for row in await self._database.repeat(work):
            hints.add_lane(row["queue"], row["priority"], row["run_at"])
        self._hinter.tell(hints)

    async def blocked_keys(self, limit: int) -> list[str]:
        """The limits somebody waits for."""
        return [row["limit_key"] for row in await self._database.fetch("blocked_keys", limit=limit)]

    # stopping and reaping

    async def stop(self, ids: Sequence[ExecutionId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these to stop; returns those that are running."""
        return self._hint_holders(await self._database.fetch("request_stop", ids=list(ids), reason=reason))

    async def stop_jobs(self, job_ids: Sequence[JobId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these jobs' executions to stop."""
        rows = await self._database.fetch("request_stop_of_jobs", job_ids=list(job_ids), reason=reason)
        return self._hint_holders(rows)

    def _hint_holders(self, rows: Sequence[Any]) -> set[ExecutionId]:
        hints = Hints()
        hints.add_holders(row["holder"] for row in rows)
        self._hinter.tell(hints)
        return {ExecutionId(row["id"]) for row in rows}

    async def stops(self, incarnation: Incarnation) -> dict[ExecutionId, str]:
        """What this holder has been asked to stop, and why."""
        rows = await self._database.fetch("stops", incarnation=incarnation)
        return {ExecutionId(row["id"]): row["stop"] for row in rows}

    async def orphans(self, limit: int) -> list[Orphan]:
        """What nobody alive holds, and what has run past its deadline."""
        rows = await self._database.fetch("reap_orphans", limit=limit)
        return [
            Orphan(
                claimed=_claimed_from(row),
                holder=Incarnation(row["holder"]),
                claimed_at=row["claimed_at"],
                is_orphan=row["is_orphan"],
            )
            for row in rows
        ]


def _results(findings: Sequence[Finding]) -> list[str | None] | None:
    """What the handlers returned; None if none of them returned anything, as most do: an array of nothing costs as much as any."""
    results = [f.outcome.result if isinstance(f.outcome, Succeeded) else None for f in findings]
    return None if results.count(None) == len(results) else results


def _refused(findings: Sequence[Finding], accepted: Set[tuple[UUID, UUID]]) -> list[Finding]:
    """By claim, not by execution: a batch may hold a stale and an honest outcome of the same one."""
    return [f for f in findings if (f.claimed.id, f.claimed.claim_id) not in accepted]


def _is_recorded(outcome: Outcome, state: str | None, tried: str | None) -> bool:
    """Whether what the history knows of a claim is this outcome, and not one that somebody else gave it."""
    match outcome:
        case Succeeded():
            return state == "succeeded"
        case Cancelled():
            return state == "cancelled"
        case NotDropped():
            return state == "skipped"
        case Failed() | TimedOut() | Lost():
            return tried == _word_for(outcome)
        case Released() | Snoozed():
            # They leave no trace; whoever took the claim away would have left one.
            return tried is None
        case _:
            assert_never(outcome)


def _word_for(outcome: Outcome) -> str:
    return "timed_out" if isinstance(outcome, TimedOut) else type(outcome).__name__.lower()


def _claimed_from(row: Any) -> Claimed:
    return Claimed(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        fence=row["fence"],
        attempt=row["attempts"],
        lost=row["lost"],
        handler=row["handler"],
        payload="",
        run_at=row["run_at"],
        scheduled_for=row["scheduled_for"],
        timeout_ms=None,
        queue=row["queue"],
        priority=row["priority"],
        claim_id=ClaimId(row["claim_id"]),
        stop=None,
    )


def _transition_columns(finding: Finding, transition: Transition, shards: int) -> dict[str, Any]:
    claimed = finding.claimed
    columns: dict[str, Any] = {
        "id": claimed.id,
        "fence": claimed.fence,
        "claim_id": claimed.claim_id,
        "started_at": finding.started_at,
        "finished_at": finding.finished_at,
        "attempts": transition.attempts,
        "lost": transition.lost,
    }
    match transition:
        case Finish(state=state, result=result, reason=reason):
            columns |= {"target": "finished", "state": state.value, "result": result, "reason": reason}
        case Wait(run_at=run_at, is_retry=is_retry):
            kind = "retry" if is_retry else "snooze"
            columns |= {"target": "due", "due_kind": kind, "run_at": run_at, "shard": shard_of(claimed.job_id, shards)}
        case Requeue():
            columns |= {"target": "ready"}
    if error := transition.error:
        columns |= {
            "outcome": _word_for(finding.outcome),
            "error_type": error.type,
            "error": error.message,
            "traceback": error.traceback,
            "top_frame": error.top_frame,
            "fingerprint": error.fingerprint,
        }
    return columns
