"""Operations, as calls: what is done to very many executions, in the background."""

from __future__ import annotations

from typing import Literal

from timeball.client.calls import Awaited, Call, Page, Read, a, a_page, anything, at, fitted, get, post
from timeball.client.models import BulkResult, Operation, OperationItem
from timeball.client.verbs import Await, Face, Group, Verb, Walk

_ENDS = frozenset({"succeeded", "cancelled", "failed"})


def is_over(operation: Operation) -> bool:
    """Whether nothing more is going to happen."""
    return operation.state in _ENDS


def what_came_of_many() -> Read[BulkResult | Operation]:
    """Reads the answer to a bulk action: what came of each, or where to ask, if they were more than 500."""

    def read(content: bytes) -> BulkResult | Operation:
        document = anything(content)
        return fitted(BulkResult, document) if "results" in document else fitted(Operation, document)

    return read


def fetch(operation: str) -> Call[Operation]:
    """The operation of an id, and how far it has come."""
    return get(at("operations", operation), a(Operation))


def search(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[Operation]]:
    """The operations of the last week, the latest first."""
    return get("/operations", a_page(Operation), limit=limit, cursor=cursor)


def list_items(
    operation: str,
    *,
    status: Literal["done", "failed"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[OperationItem]]:
    """What came of each execution, in order."""
    return get(at("operations", operation, "items"), a_page(OperationItem), status=status, limit=limit, cursor=cursor)


def cancel(operation: str, reason: str | None = None) -> Call[Operation]:
    """Stop an operation where it is; what it has done stays done."""
    return post(at("operations", operation, "cancel"), a(Operation), {"reason": reason})


def wait(operation: str, timeout: float | None = None) -> Awaited[Operation]:
    """Wait for the end of an operation; ResultTimeout after so many seconds."""
    return Awaited(operation, fetch(operation), is_over, timeout)


class Operations(Group[Face]):
    """What can be done with operations."""

    get = Verb(fetch)
    list = Verb(search)
    iterate = Walk(search)
    items = Verb(list_items)
    iterate_items = Walk(list_items)
    cancel = Verb(cancel)
    wait = Await(wait)
