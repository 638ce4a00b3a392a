"""Executions and dead letters, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from timeball.client.calls import Awaited, Call, Page, a, a_page, at, get, many, post, raw
from timeball.client.models import (
    BulkResult,
    DeadGroup,
    Execution,
    ExecutionDetails,
    Explanation,
    LogLine,
    Operation,
    Try,
)
from timeball.client.operations import what_came_of_many
from timeball.client.verbs import Await, Download, Face, Group, Verb, Walk
from timeball.client.wishes import ExecutionSearch

_ENDS = frozenset({"succeeded", "cancelled", "dead", "skipped"})


def fetch(execution: str) -> Call[ExecutionDetails]:
    """The execution of an id, with its attempts, time line, result and error."""
    return get(at("executions", execution), a(ExecutionDetails))


def search(
    *,
    limit: int | None = None,
    cursor: str | None = None,
    include: Literal["total"] | None = None,
    **wanted: Unpack[ExecutionSearch],
) -> Call[Page[Execution]]:
    """Executions that match, the latest first; *q* is the language of search: `status:dead late:>30s`."""
    return get("/executions", a_page(Execution), limit=limit, cursor=cursor, include=include, **wanted)


def list_attempts(execution: str) -> Call[list[Try]]:
    """Every try of an execution, the one under way too."""
    return get(at("executions", execution, "attempts"), many(Try))


def explain(execution: str) -> Call[Explanation]:
    """Why an execution does not run: one sentence, then every gate."""
    return get(at("executions", execution, "explain"), a(Explanation))


def wait(execution: str, timeout: float | None = None) -> Awaited[ExecutionDetails]:
    """Wait for the end of an execution, however it ends; ResultTimeout after so many seconds."""
    return Awaited(execution, fetch(execution), lambda found: found.state in _ENDS, timeout)


def read_logs(execution: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[LogLine]]:
    """What the handler said, in order; the page's cursor goes on where it ended, also while it still runs."""
    return get(at("executions", execution, "logs"), a_page(LogLine), limit=limit, cursor=cursor)


def cancel(execution: str, reason: str | None = None) -> Call[ExecutionDetails]:
    """Cancel an execution: what waits, at once; what runs is asked to stop."""
    return post(at("executions", execution, "cancel"), a(ExecutionDetails), {"reason": reason})


def retry(
    execution: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None
) -> Call[ExecutionDetails]:
    """Run an ended execution again: a new one, linked to the old; with another payload, if one is given.

    With *wait*, such as `30s`, the answer comes when it has ended, or when the wait is over.
    """
    body = {"payload": payload, "reason": reason}
    return post(at("executions", execution, "retry"), a(ExecutionDetails), body, wait=wait)


def bulk(
    action: Literal["cancel", "retry"],
    *,
    ids: Sequence[str] | None = None,
    matching: Mapping[str, Any] | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> Call[BulkResult | Operation]:
    """Cancel or retry many executions, named by *ids* or found by a filter.

    Of up to 500 the answer tells what came of each; more become an Operation, whose end `operations.wait` awaits.
    """
    body = {
        "action": action,
        "ids": None if ids is None else list(ids),
        "filter": matching,
        "reason": reason,
        "dry_run": dry_run,
        "expected_count": expected_count,
    }
    return post("/executions/bulk", what_came_of_many(), body)


def export(
    format: Literal["csv", "jsonl", "json"] = "csv", bom: bool = False, **wanted: Unpack[ExecutionSearch]
) -> Call[bytes]:
    """All executions that match, as CSV, JSON lines or one JSON list; *bom* begins a CSV with a byte order mark."""
    return get("/executions/export", raw, format=format, bom=bom or None, **wanted)


class Executions(Group[Face]):
    """What can be done with executions."""

    get = Verb(fetch)
    list = Verb(search)
    iterate = Walk(search)
    attempts = Verb(list_attempts)
    explain = Verb(explain)
    wait = Await(wait)
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


def groups(by: Literal["error", "handler", "queue"] | None = None, limit: int | None = None) -> Call[list[DeadGroup]]:
    """The dead, grouped by what killed them, by handler or by queue, the largest group first."""
    return get("/dead-letter/groups", many(DeadGroup), by=by, limit=limit)


def retry_dead(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    handler: str | None = None,
    queue: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> Call[BulkResult | Operation]:
    """Run dead executions again: some by id, all of a group, or all; an Operation if they are more than 500."""
    group = {"fingerprint": fingerprint, "handler": handler, "queue": queue}
    return post("/dead-letter/retry", what_came_of_many(), _choice(ids, group, all_of_them, reason))


def discard(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    handler: str | None = None,
    queue: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> Call[BulkResult | Operation]:
    """Take dead executions off the list: some by id, all of a group, or all; an Operation if they are more than 500."""
    group = {"fingerprint": fingerprint, "handler": handler, "queue": queue}
    return post("/dead-letter/discard", what_came_of_many(), _choice(ids, group, all_of_them, reason))


def _choice(
    ids: Sequence[str] | None, group: dict[str, str | None], all_of_them: bool, reason: str | None
) -> dict[str, Any]:
    return group | {
        "ids": None if ids is None else list(ids),
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
