"""`client.executions`, `client.dead_letters` and `client.operations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from timeball.client.requests import (
    ApiRequest,
    ClientType,
    DownloadMethod,
    IterateMethod,
    Method,
    Page,
    Parser,
    Poll,
    Resource,
    WaitMethod,
    get,
    parse_json,
    parse_list,
    parse_model,
    parse_page,
    path_of,
    post,
    raw_content,
    validate_model,
)
from timeball.client.types import (
    BulkResult,
    DeadGroupOut,
    Execution,
    ExecutionDetails,
    ExecutionFilterParams,
    Explanation,
    LogLine,
    Operation,
    OperationItem,
    Try,
)

# Executions and dead letters, as calls.

_FINAL_STATES = frozenset({"succeeded", "cancelled", "dead", "skipped"})


def fetch(execution: str) -> ApiRequest[ExecutionDetails]:
    """The execution of an id, with its attempts, time line, result and error."""
    return get(path_of("executions", execution), parse_model(ExecutionDetails))


def search(
    *,
    limit: int | None = None,
    cursor: str | None = None,
    include: Literal["total"] | None = None,
    **wanted: Unpack[ExecutionFilterParams],
) -> ApiRequest[Page[Execution]]:
    """Executions that match, the latest first; *q* is the language of search: `status:dead late:>30s`."""
    return get("/executions", parse_page(Execution), limit=limit, cursor=cursor, include=include, **wanted)


def list_attempts(execution: str) -> ApiRequest[list[Try]]:
    """Every try of an execution, the one under way too."""
    return get(path_of("executions", execution, "attempts"), parse_list(Try))


def explain(execution: str) -> ApiRequest[Explanation]:
    """Why an execution does not run: one sentence, then every gate."""
    return get(path_of("executions", execution, "explain"), parse_model(Explanation))


def wait(execution: str, timeout: float | None = None) -> Poll[ExecutionDetails]:
    """Wait for the end of an execution, however it ends; ResultTimeout after so many seconds."""
    return Poll(execution, fetch(execution), lambda found: found.state in _FINAL_STATES, timeout)


def read_logs(execution: str, *, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[LogLine]]:
    """What the handler said, in order; the page's cursor goes on where it ended, also while it still runs."""
    return get(path_of("executions", execution, "logs"), parse_page(LogLine), limit=limit, cursor=cursor)


def cancel(execution: str, reason: str | None = None) -> ApiRequest[ExecutionDetails]:
    """Cancel an execution: what waits, at once; what runs is asked to stop."""
    return post(path_of("executions", execution, "cancel"), parse_model(ExecutionDetails), {"reason": reason})


def retry(
    execution: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None
) -> ApiRequest[ExecutionDetails]:
    """Run an ended execution again: a new one, linked to the old; with another payload, if one is given.

    With *wait*, such as `30s`, the answer comes when it has ended, or when the wait is over.
    """
    body = {"payload": payload, "reason": reason}
    return post(path_of("executions", execution, "retry"), parse_model(ExecutionDetails), body, wait=wait)


def bulk(
    action: Literal["cancel", "retry"],
    *,
    ids: Sequence[str] | None = None,
    matching: Mapping[str, Any] | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> ApiRequest[BulkResult | Operation]:
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
    return post("/executions/bulk", parse_bulk_result(), body)


def export(
    format: Literal["csv", "jsonl", "json"] = "csv", bom: bool = False, **wanted: Unpack[ExecutionFilterParams]
) -> ApiRequest[bytes]:
    """All executions that match, as CSV, JSON lines or one JSON list; *bom* begins a CSV with a byte order mark."""
    return get("/executions/export", raw_content, format=format, bom=bom or None, **wanted)


class ExecutionsApi(Resource[ClientType]):
    """What can be done with executions."""

    get = Method(fetch)
    list = Method(search)
    iterate = IterateMethod(search)
    attempts = Method(list_attempts)
    explain = Method(explain)
    wait = WaitMethod(wait)
    logs = Method(read_logs)
    iterate_logs = IterateMethod(read_logs)
    cancel = Method(cancel)
    retry = Method(retry)
    bulk = Method(bulk)
    export = DownloadMethod(export)


def search_dead(
    *,
    fingerprint: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    **wanted: Unpack[ExecutionFilterParams],
) -> ApiRequest[Page[Execution]]:
    """Dead executions that nobody has dealt with, the latest first."""
    return get("/dead-letter", parse_page(Execution), fingerprint=fingerprint, limit=limit, cursor=cursor, **wanted)


def group_dead(
    by: Literal["error", "handler", "queue"] | None = None, limit: int | None = None
) -> ApiRequest[list[DeadGroupOut]]:
    """The dead, grouped by what killed them, by handler or by queue, the largest group first."""
    return get("/dead-letter/groups", parse_list(DeadGroupOut), by=by, limit=limit)


def retry_dead(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    handler: str | None = None,
    queue: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> ApiRequest[BulkResult | Operation]:
    """Run dead executions again: some by id, all of a group, or all; an Operation if they are more than 500."""
    group = {"fingerprint": fingerprint, "handler": handler, "queue": queue}
    return post("/dead-letter/retry", parse_bulk_result(), _selection(ids, group, all_of_them, reason))


def discard_dead(
    *,
    ids: Sequence[str] | None = None,
    fingerprint: str | None = None,
    handler: str | None = None,
    queue: str | None = None,
    all_of_them: bool = False,
    reason: str | None = None,
) -> ApiRequest[BulkResult | Operation]:
    """Take dead executions off the list: some by id, all of a group, or all; an Operation if they are more than 500."""
    group = {"fingerprint": fingerprint, "handler": handler, "queue": queue}
    return post("/dead-letter/discard", parse_bulk_result(), _selection(ids, group, all_of_them, reason))


def _selection(
    ids: Sequence[str] | None, group: dict[str, str | None], all_of_them: bool, reason: str | None
) -> dict[str, Any]:
    return group | {
        "ids": None if ids is None else list(ids),
        "all": all_of_them or None,
        "reason": reason,
    }


class DeadLettersApi(Resource[ClientType]):
    """What can be done with dead letters."""

    list = Method(search_dead)
    iterate = IterateMethod(search_dead)
    groups = Method(group_dead)
    retry = Method(retry_dead)
    discard = Method(discard_dead)


# Operations, as calls: what is done to very many executions, in the background.

_FINAL_OPERATION_STATES = frozenset({"succeeded", "cancelled", "failed"})


def is_over(operation: Operation) -> bool:
    """Whether nothing more is going to happen."""
    return operation.state in _FINAL_OPERATION_STATES


def parse_bulk_result() -> Parser[BulkResult | Operation]:
    """Reads the answer to a bulk action: what came of each, or where to ask, if they were more than 500."""

    def read(content: bytes) -> BulkResult | Operation:
        document = parse_json(content)
        return validate_model(BulkResult, document) if "results" in document else validate_model(Operation, document)

    return read


def fetch_operation(operation: str) -> ApiRequest[Operation]:
    """The operation of an id, and how far it has come."""
    return get(path_of("operations", operation), parse_model(Operation))


def search_operations(*, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Operation]]:
    """The operations of the last week, the latest first."""
    return get("/operations", parse_page(Operation), limit=limit, cursor=cursor)


def list_operation_items(
    operation: str,
    *,
    status: Literal["done", "failed"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ApiRequest[Page[OperationItem]]:
    """What came of each execution, in order."""
    return get(
        path_of("operations", operation, "items"), parse_page(OperationItem), status=status, limit=limit, cursor=cursor
    )


def cancel_operation(operation: str, reason: str | None = None) -> ApiRequest[Operation]:
    """Stop an operation where it is; what it has done stays done."""
    return post(path_of("operations", operation, "cancel"), parse_model(Operation), {"reason": reason})


def wait_for_operation(operation: str, timeout: float | None = None) -> Poll[Operation]:
    """Wait for the end of an operation; ResultTimeout after so many seconds."""
    return Poll(operation, fetch_operation(operation), is_over, timeout)


class OperationsApi(Resource[ClientType]):
    """What can be done with operations."""

    get = Method(fetch_operation)
    list = Method(search_operations)
    iterate = IterateMethod(search_operations)
    items = Method(list_operation_items)
    iterate_items = IterateMethod(list_operation_items)
    cancel = Method(cancel_operation)
    wait = WaitMethod(wait_for_operation)
