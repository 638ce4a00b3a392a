"""Executions and dead letters, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from timeball.client.calls import Call, Page, a, a_page, at, get, many, post, raw
from timeball.client.models import BulkResult, DeadGroup, Execution, ExecutionDetails, LogLine
from timeball.client.verbs import Download, Face, Group, Verb, Walk
from timeball.client.wishes import ExecutionSearch


def fetch(execution: str) -> Call[ExecutionDetails]:
    """The execution of an id, with its attempts, time line, result and error."""
    return get(at("executions", execution), a(ExecutionDetails))


def search(
    *, limit: int | None = None, cursor: str | None = None, **wanted: Unpack[ExecutionSearch]
) -> Call[Page[Execution]]:
    """Executions that match, the latest first."""
    return get("/executions", a_page(Execution), limit=limit, cursor=cursor, **wanted)


def read_logs(execution: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[LogLine]]:
    """What the handler said, in order; the page's cursor goes on where it ended, also while it still runs."""
    return get(at("executions", execution, "logs"), a_page(LogLine), limit=limit, cursor=cursor)


def cancel(execution: str, reason: str | None = None) -> Call[ExecutionDetails]:
    """Cancel an execution: what waits, at once; what runs is asked to stop."""
    return post(at("executions", execution, "cancel"), a(ExecutionDetails), {"reason": reason})


def retry(execution: str, payload: Any = None, reason: str | None = None) -> Call[ExecutionDetails]:
    """Run an ended execution again: a new one, linked to the old; with another payload, if one is given."""
    return post(at("executions", execution, "retry"), a(ExecutionDetails), {"payload": payload, "reason": reason})


def bulk(
    action: Literal["cancel", "retry"],
    *,
    ids: Sequence[str] | None = None,
    matching: Mapping[str, Any] | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> Call[BulkResult]:
    """Cancel or retry many executions, named by *ids* or found by a filter."""
    body = {
        "action": action,
        "ids": None if ids is None else list(ids),
        "filter": matching,
        "reason": reason,
        "dry_run": dry_run,
        "expected_count": expected_count,
    }
    return post("/executions/bulk", a(BulkResult), body)


def export(format: Literal["csv", "jsonl"] = "csv", **wanted: Unpack[ExecutionSearch]) -> Call[bytes]:  # noqa: A002
    """All executions that match, as CSV or JSON lines."""
    return get("/executions/export", raw, format=format, **wanted)


class Executions(Group[Face]):
    """What can be done with executions."""

    get = Verb(fetch)
    list = Verb(search)
    iterate = Walk(search)
    logs = Verb(read_logs)
    iterate_logs = Walk(read_logs)
    cancel = Verb(cancel)
    retry = Verb(retry)
    bulk = Verb(bulk)
    export = Download(export)


def dead(
    *,
    fingerprint: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    **wanted: Unpack[ExecutionSearch],
) -> Call[Page[Execution]]:
    """Dead executions that nobody has dealt with, the latest first."""
    return get("/dead-letter", a_page(Execution), fingerprint=fingerprint, limit=limit, cursor=cursor, **wanted)


def groups(limit: int | None = None) -> Call[list[DeadGroup]]:
    """The dead, grouped by what killed them, the largest group first."""
    return get("/dead-letter/groups", many(DeadGroup), limit=limit)


def retry_dead(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> Call[BulkResult]:
    """Run dead executions again: some by id, all of one cause, or all; up to 500 a call."""
    return post("/dead-letter/retry", a(BulkResult), _choice(ids, fingerprint, all_of_them, reason))


def discard(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> Call[BulkResult]:
    """Take dead executions off the list: some by id, all of one cause, or all; up to 500 a call."""
    return post("/dead-letter/discard", a(BulkResult), _choice(ids, fingerprint, all_of_them, reason))


def _choice(
    ids: Sequence[str] | None, fingerprint: str | None, all_of_them: bool, reason: str | None
) -> dict[str, Any]:
    return {
        "ids": None if ids is None else list(ids),
        "fingerprint": fingerprint,
        "all": all_of_them or None,
        "reason": reason,
    }


class DeadLetters(Group[Face]):
    """What can be done with dead letters."""

    list = Verb(dead)
    iterate = Walk(dead)
    groups = Verb(groups)
    retry = Verb(retry_dead)
    discard = Verb(discard)
