"""Whether the promises hold: the whole history of a database, read in one snapshot.

Most promises are one statement each (`sql/verify.sql`) that returns the rows which break it. The ledger is not: see `ledger.py`.

A snapshot holds back the vacuum of a live system, so nothing is waited for while it is open. What only looks stuck (a
node buried this very moment, a place just freed) is looked at once more after a few seconds, in a snapshot of its own;
what is still there is stuck. If nobody is alive to act, that is no broken promise but a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from timeball.store.database import Database, Record
from timeball.store.verify.ledger import check_ledger
from timeball.store.verify.report import Check, Report
from timeball.store.verify.snapshot import UNFINISHED, Question, snapshot

SECOND_LOOK = timedelta(seconds=5)

_QUESTIONS = (
    Question("rooms", "An execution is in one room", "executions", "verify_rooms", (*UNFINISHED, "finished")),
    Question("S4", "Fences strictly increase", "attempts", "verify_fences", ("attempts", "running")),
    Question("S5", "A claim has one outcome", "outcomes", "verify_outcomes", ("attempts", "started")),
    Question("ends", "What has ended agrees with its end", "outcomes", "verify_ends", ("attempts", "finished")),
    Question("S6", "Nothing starts early", "starts", "verify_never_early", ("attempts", "started")),
    Question("S7", "Tries are bounded", "executions", "verify_budgets", (*UNFINISHED, "finished")),
    Question("S8", "Nothing vanishes", "one-offs and unfinished", "verify_conservation", ("one_offs", *UNFINISHED)),
    Question("S9", "Limits are kept", "limits", "verify_limits", ("limits",)),
    Question("overlap", "Runs of a job do not overlap", "runs", "verify_overlap", ("started_by_schedule",)),
    Question("keys", "A key has one unfinished execution", "keys", "verify_keys", ("keys",)),
    Question("due", "What is pending agrees with its job", "pending rows", "verify_due", ("pending",)),
    Question("waiting", "What waits or runs agrees with its job", "unfinished", "verify_waiting", UNFINISHED),
)
_ORDER = (
    "S1",
    "S2",
    "S3",
    "rooms",
    "S4",
    "S5",
    "ends",
    "S6",
    "S7",
    "S8",
    "S9",
    "overlap",
    "keys",
    "due",
    "waiting",
    "stuck",
)


async def verify(database: Database, now: datetime | None = None, *, second_look: timedelta = SECOND_LOOK) -> Report:
    """Check every promise over the whole history that is kept; changes nothing, and may run on a live system.

    *now* is for tests: without it the database's clock decides. What looks stuck is believed to be after a *second_look*.
    """
    async with snapshot(database, now) as look:
        ledger = await check_ledger(look)
        others = [await look.run(question) for question in _QUESTIONS]
        suspects = await look.suspects()
    if second_look and any(look.can_be_acted_upon(suspect) for suspect in suspects):
        await database.env.clock.sleep(second_look.total_seconds())
        async with snapshot(database, now) as again:
            remaining = {_identity(suspect) for suspect in await again.suspects()}
        suspects = [suspect for suspect in suspects if _identity(suspect) in remaining]
    return Report(look.now, _in_order([*ledger, *others, look.stuck(suspects)]))


def _in_order(checks: Sequence[Check]) -> list[Check]:
    """The checks as they are shown; the ledger and a statement may both have found something about one promise."""
    merged: dict[str, Check] = {}
    for check in checks:
        if check.code in merged:
            merged[check.code].absorb(check)
        else:
            merged[check.code] = check
    return [merged[code] for code in _ORDER]


def _identity(suspect: Record) -> tuple[Any, ...]:
    return suspect["why"], suspect["execution_id"], suspect["since"]
