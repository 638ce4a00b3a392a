"""From `running` to `finished`, or back: what came of a claim is written while its row still names it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
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
    Succeeded,
    TimedOut,
)
from timeball.domain.hints import Hints
from timeball.domain.ids import ClaimId, ExecutionId, Incarnation, JobId, shard_of
from timeball.domain.lifecycle import Finish, Move, Requeue, Standing, Wait
from timeball.store.connections import Connection
from timeball.store.database import refusing_content
from timeball.store.moves import Moves
from timeball.store.rows import delivery_from, json_text, retry_policy_from


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running row whose holder is dead, or whose deadline has passed."""

    claimed: Claimed
    holder: Incarnation
    claimed_at: datetime
    is_orphan: bool


class Finishing(Moves):
    """What becomes of what was claimed: by its holder, or by the reaper."""

    async def finish_succeeded(
        self, findings: Sequence[Finding], connection: Connection | None = None
    ) -> list[Finding]:
        """Record successes, each only while its row still names the claim; returns those that were refused as stale."""
        # The statement locks them in this order. By their bytes: the database sorts them so, and ids themselves take long to compare.
        in_order = sorted(findings, key=lambda f: f.claimed.id.bytes)
        with refusing_content():
            row = await self._database.fetch_row(
                "finish_succeeded",
                connection,
                ids=[f.claimed.id for f in in_order],
                fences=[f.claimed.fence for f in in_order],
                claim_ids=[f.claimed.claim_id for f in in_order],
                started=[f.started_at for f in in_order],
                finished=[f.finished_at for f in in_order],
                results=_results(in_order),
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
            "standings",
            ids=[claimed.id for claimed in claims],
            fences=[claimed.fence for claimed in claims],
            claim_ids=[claimed.claim_id for claimed in claims],
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

    async def record_transitions(self, moves: Sequence[Move]) -> list[Finding]:
        """Move executions to where `decide` sent them; returns those that stayed where they were.

        A row moves only while it names the claim, and while the standing that was decided upon is still true: to those that nobody has
        taken away, somebody has said something in between.
        """
        with refusing_content():
            rows = await self._database.fetch(
                "record_transitions", transitions=json_text(_transition_columns(move, self._shards) for move in moves)
            )
        refused = _refused([move.finding for move in moves], {(row["id"], row["claim_id"]) for row in rows})
        await self._after_transitions(rows, [move for move in moves if move.finding not in refused])
        return refused

    async def _after_transitions(self, rows: Sequence[Any], moves: Sequence[Move]) -> None:
        hints = Hints()
        for row in rows:
            if row["target"] == "ready":
                # Uncounted: it comes back from a worker that was full, and any other may take it.
                hints.add_lane(row["queue"], row["priority"], row["run_at"])
        for finding, _, transition in moves:
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
        with refusing_content():
            await self._database.fetch(
                "report_progress",
                id=claimed.id,
                fence=claimed.fence,
                claim_id=claimed.claim_id,
                progress=progress,
                note=note,
            )

    async def orphans(self, limit: int) -> list[Orphan]:
        """What nobody alive holds, and what has run past its deadline."""
        rows = sorted(await self._database.fetch("reap_orphans", limit=limit))
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
            # A retry that was called off waits, and leaves no trace.
            return state == "skipped" or (state is None and tried is None)
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


def _transition_columns(move: Move, shards: int) -> dict[str, Any]:
    finding, standing, transition = move
    claimed = finding.claimed
    columns: dict[str, Any] = {
        "id": claimed.id,
        "job_id": claimed.job_id,
        "fence": claimed.fence,
        "claim_id": claimed.claim_id,
        "stop": standing.stop,
        "is_paused": standing.is_paused,
        "is_deleted": standing.is_deleted,
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
