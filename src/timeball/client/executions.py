"""`client.executions`, `client.groups`, `client.dead_letters` and `client.operations`."""

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
    CancelledGroup,
    CreatedGroup,
    DeadGroupOut,
    Execution,
    ExecutionDetails,
    ExecutionFilterParams,
    Explanation,
    Group,
    GroupDetails,
    GroupExplanation,
    LogLine,
    Operation,
    OperationItem,
    Try,
    WorkParams,
)

_FINAL_STATES = frozenset({"succeeded", "cancelled", "dead", "skipped"})


def fetch(execution: str) -> ApiRequest[ExecutionDetails]:
    """An execution by id, with its attempts, timeline, result and error."""
    return get(path_of("executions", execution), parse_model(ExecutionDetails))


def search(
    *,
    limit: int | None = None,
    cursor: str | None = None,
    include: Literal["total"] | None = None,
    **filters: Unpack[ExecutionFilterParams],
) -> ApiRequest[Page[Execution]]:
    """Matching executions, the latest first; *q* is a search: `status:dead late:>30s`."""
    return get("/executions", parse_page(Execution), limit=limit, cursor=cursor, include=include, **filters)


def list_attempts(execution: str) -> ApiRequest[list[Try]]:
    """Every attempt of an execution, including the running one."""
    return get(path_of("executions", execution, "attempts"), parse_list(Try))


def explain(execution: str) -> ApiRequest[Explanation]:
    """Why an execution does not run: one sentence, then every gate."""
    return get(path_of("executions", execution, "explain"), parse_model(Explanation))


def wait(execution: str, timeout: float | None = None) -> Poll[ExecutionDetails]:
    """Wait until an execution has finished, whatever its outcome; ResultTimeout after *timeout* seconds."""
    return Poll(execution, fetch(execution), lambda details: details.state in _FINAL_STATES, timeout)


def read_logs(execution: str, *, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[LogLine]]:
    """The log lines of the handler, in order; the cursor of a page stays valid while the execution runs."""
    return get(path_of("executions", execution, "logs"), parse_page(LogLine), limit=limit, cursor=cursor)


def cancel(execution: str, reason: str | None = None) -> ApiRequest[ExecutionDetails]:
    """Cancel an execution: a waiting one at once; a running one is asked to stop."""
    return post(path_of("executions", execution, "cancel"), parse_model(ExecutionDetails), {"reason": reason})


def retry(
    execution: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None
) -> ApiRequest[ExecutionDetails]:
    """Run a finished execution again, as a new one that is linked to it; with *payload*, if given.

    With *wait*, such as `30s`, the response comes when it has finished, or when the wait is over.
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
    """Cancel or retry many executions, given by *ids* or by a filter.

    For up to 500 the response has the result of each; more become an Operation, for `operations.wait`.
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
    format: Literal["csv", "jsonl", "json"] = "csv", bom: bool = False, **filters: Unpack[ExecutionFilterParams]
) -> ApiRequest[bytes]:
    """All matching executions as CSV, JSON lines or one JSON list; *bom* begins a CSV with a byte order mark."""
    return get("/executions/export", raw_content, format=format, bom=bom or None, **filters)


def fetch_group(
    group: str, *, limit: int | None = None, cursor: str | None = None, only_open: bool = False
) -> ApiRequest[GroupDetails]:
    """A group with a page of its parts in order, and the parts of the groups in it; with *only_open* only those that have not ended."""
    return get(path_of("groups", group), parse_model(GroupDetails), limit=limit, cursor=cursor, open=only_open or None)


def list_groups(
    *,
    state: Literal["open", "succeeded", "failed"] | None = None,
    nested: bool = False,
    limit: int | None = None,
    cursor: str | None = None,
) -> ApiRequest[Page[Group]]:
    """Groups, the latest first; with *nested*, also those that are inside of other groups."""
    return get("/groups", parse_page(Group), state=state, nested=nested or None, limit=limit, cursor=cursor)


def create_group(
    group: Sequence[WorkParams] | None = None,
    *,
    chain: Sequence[WorkParams] | None = None,
    then: WorkParams | None = None,
    on_failure: WorkParams | None = None,
    meta: Mapping[str, Any] | None = None,
    reason: str | None = None,
    unchecked: bool = False,
) -> ApiRequest[CreatedGroup]:
    """Begin a group whose parts run side by side, or a *chain* whose steps run one after the other, in one transaction.

    *then* follows when all parts have succeeded; *on_failure* when all have ended, and one otherwise than by success.
    """
    body = {
        "group": None if group is None else list(group),
        "chain": None if chain is None else list(chain),
        "then": then,
        "on_failure": on_failure,
        "meta": meta,
        "reason": reason,
        "unchecked": unchecked,
    }
    return post("/groups", parse_model(CreatedGroup), body)


def cancel_group(group: str, reason: str | None = None) -> ApiRequest[CancelledGroup]:
    """Cancel what waits of a group, and ask what runs to stop; what follows its failure follows."""
    return post(path_of("groups", group, "cancel"), parse_model(CancelledGroup), {"reason": reason})


def explain_group(group: str) -> ApiRequest[GroupExplanation]:
    """Which parts a group waits for, and why those do not run."""
    return get(path_of("groups", group, "explain"), parse_model(GroupExplanation))


class GroupsApi(Resource[ClientType]):
    """Groups of executions."""

    create = Method(create_group)
    get = Method(fetch_group)
    list = Method(list_groups)
    iterate = IterateMethod(list_groups)
    cancel = Method(cancel_group)
    explain = Method(explain_group)


class ExecutionsApi(Resource[ClientType]):
    """Executions."""

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
    **filters: Unpack[ExecutionFilterParams],
) -> ApiRequest[Page[Execution]]:
    """Dead executions that were neither retried nor discarded, the latest first."""
    return get("/dead-letter", parse_page(Execution), fingerprint=fingerprint, limit=limit, cursor=cursor, **filters)


def group_dead(
    by: Literal["error", "handler", "queue"] | None = None, limit: int | None = None
) -> ApiRequest[list[DeadGroupOut]]:
    """Dead executions, grouped by error, handler or queue, the largest group first."""
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
    """Run dead executions again: by id, all of a group, or all; an Operation if they are more than 500."""
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
    """Take dead executions off the list: by id, all of a group, or all; an Operation if they are more than 500."""
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
    """Dead letters."""

    list = Method(search_dead)
    iterate = IterateMethod(search_dead)
    groups = Method(group_dead)
    retry = Method(retry_dead)
    discard = Method(discard_dead)


_FINAL_OPERATION_STATES = frozenset({"succeeded", "cancelled", "failed"})


def is_over(operation: Operation) -> bool:
    """Whether an operation has finished."""
    return operation.state in _FINAL_OPERATION_STATES


def parse_bulk_result() -> Parser[BulkResult | Operation]:
    """Parses the response to a bulk action: the result of each item, or an Operation if they are more than 500."""

    def read(content: bytes) -> BulkResult | Operation:
        document = parse_json(content)
        return validate_model(BulkResult, document) if "results" in document else validate_model(Operation, document)

    return read


def fetch_operation(operation: str) -> ApiRequest[Operation]:
    """An operation by id, with its progress."""
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
    """The result of each item, in order."""
    return get(
        path_of("operations", operation, "items"), parse_page(OperationItem), status=status, limit=limit, cursor=cursor
    )


def cancel_operation(operation: str, reason: str | None = None) -> ApiRequest[Operation]:
    """Stop an operation; finished items stay as they are."""
    return post(path_of("operations", operation, "cancel"), parse_model(Operation), {"reason": reason})


def pause_operation(operation: str, reason: str | None = None) -> ApiRequest[Operation]:
    """Let a backfill create no more executions until it is resumed."""
    return post(path_of("operations", operation, "pause"), parse_model(Operation), {"reason": reason})


def resume_operation(operation: str, reason: str | None = None) -> ApiRequest[Operation]:
    """Let a paused backfill go on where it was."""
    return post(path_of("operations", operation, "resume"), parse_model(Operation), {"reason": reason})


def wait_for_operation(operation: str, timeout: float | None = None) -> Poll[Operation]:
    """Wait until an operation has finished; ResultTimeout after *timeout* seconds."""
    return Poll(operation, fetch_operation(operation), is_over, timeout)


class OperationsApi(Resource[ClientType]):
    """Bulk operations."""

    get = Method(fetch_operation)
    list = Method(search_operations)
    iterate = IterateMethod(search_operations)
    items = Method(list_operation_items)
    iterate_items = IterateMethod(list_operation_items)
    cancel = Method(cancel_operation)
    pause = Method(pause_operation)
    resume = Method(resume_operation)
    wait = WaitMethod(wait_for_operation)
