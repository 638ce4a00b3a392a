"""What a program reads for its own pages, without a server: runs with their progress, queues and workers.

The answers are those of the API, read through the same queries. The program holds the database's password, so nothing is hidden from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import orjson

from timeball.api.models.executions import ExecutionOut as RunInfo
from timeball.api.models.executions import execution_document
from timeball.api.models.system import NodeOut as WorkerInfo
from timeball.api.models.system import QueueOut as QueueInfo
from timeball.api.models.system import node_document, queue_document
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.node import NodeKind
from timeball.domain.search import ExecutionFilter, PageRequest, SearchRelation, SearchTerm, where
from timeball.domain.trace import without_trace
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import format_job_id
from timeball.domain.values.text import check_label
from timeball.errors import InvalidInput, NotFound
from timeball.sdk.enqueue import EnqueueClient, SdkRuntime
from timeball.sdk.options import check_options
from timeball.sdk.runs import Run

__all__ = [
    "QueueInfo",
    "RunFilter",
    "RunInfo",
    "WorkerInfo",
    "find_by_key",
    "info_of",
    "queues",
    "run_filter",
    "runs",
    "workers",
]

IS, LIKE = SearchRelation.IS, SearchRelation.LIKE
MOST_RUNS = 1_000
_PAGE = 200
# So many runs of one key are looked at.
_MOST_OF_A_KEY = 200


class RunFilter(TypedDict, total=False):
    """Which runs: all that is given must hold; of several states, one."""

    handler: str
    state: str | Sequence[str]
    queue: str
    tag: str
    meta: Mapping[str, Any]
    key: str
    """The key that the runs were enqueued with."""


def info_of(execution: Execution) -> RunInfo:
    """An execution as the API shows it, with nothing hidden."""
    return RunInfo.model_validate_json(
        orjson.dumps(execution_document(execution) | {"meta": without_trace(execution.meta)})
    )


def run_filter(given: Mapping[str, Any], limit: int) -> tuple[tuple[SearchTerm, ...], str | None]:
    """The terms of a search for runs, and the key; InvalidInput names what does not fit."""
    check_options(given, RunFilter, "runs()")
    if not isinstance(limit, int) or not 1 <= limit <= MOST_RUNS:
        raise unexpected_value("limit", limit, f"1 to {MOST_RUNS}")
    texts = {word: check_label(given[word], word) for word in ("handler", "queue", "tag", "key") if word in given}
    key = texts.pop("key", None)
    state = given.get("state", ())
    states = [_state(word) for word in ([state] if isinstance(state, str) else state)]
    words = [SearchTerm(word, LIKE if "*" in text else IS, (text,)) for word, text in texts.items()]
    return (*words, *where(status=states), *_meta_terms(given.get("meta", {}))), key


def _state(word: object) -> str:
    try:
        return ExecutionState(str(word)).value
    except ValueError:
        raise unexpected_value("state", word, list_choices(ExecutionState)) from None


def _meta_terms(meta: Any) -> Iterator[SearchTerm]:
    if not isinstance(meta, Mapping):
        raise unexpected_value("meta", meta, 'a mapping such as {"tenant": "acme"}')
    for word, value in meta.items():
        if isinstance(value, Mapping | list) or value is None:
            raise InvalidInput(f"meta.{word} is {value!r}, expected a text, a number or a boolean", field="meta")
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        yield SearchTerm("meta", IS, (text,), path=(str(word),))


# in the background loop


async def runs(terms: Sequence[SearchTerm], key: str | None, limit: int, runtime: SdkRuntime) -> list[RunInfo]:
    """The runs that match, the latest first."""
    if key is not None:
        ids = await runtime.queries.executions.enqueued_with_key(key, _MOST_OF_A_KEY)
        if not ids:
            return []
        terms = (*terms, *where(job=[format_job_id(id_) for id_ in ids]))
    await runtime.now()
    found: list[RunInfo] = []
    request: PageRequest | None = PageRequest(limit=min(limit, _PAGE))
    while request is not None and len(found) < limit:
        page = await runtime.queries.executions.page(ExecutionFilter(tuple(terms)), request)
        found += map(info_of, page.items)
        request = None if page.next_cursor is None else PageRequest(limit=request.limit, cursor=page.next_cursor)
    return found[:limit]


async def find_by_key(client: EnqueueClient, key: str, runtime: SdkRuntime) -> Run[Any]:
    """The run that has a key, or else the latest that was enqueued with it; NotFound if there is none."""
    execution = await runtime.queries.executions.with_key(key)
    if execution is None:
        raise NotFound("run with the key", key)
    return Run(client.background_loop, execution.id, execution.job_id, is_new=False)


async def queues(runtime: SdkRuntime) -> list[QueueInfo]:
    """Every queue in use, by name."""
    found: list[QueueInfo] = []
    request: PageRequest | None = PageRequest(limit=_PAGE)
    while request is not None:
        page = await runtime.queries.queue_page(request)
        found += [QueueInfo.model_validate_json(orjson.dumps(queue_document(row))) for row in page.items]
        request = None if page.next_cursor is None else PageRequest(limit=_PAGE, cursor=page.next_cursor)
    return found


async def workers(runtime: SdkRuntime) -> list[WorkerInfo]:
    """The workers that are registered."""
    nodes = await runtime.queries.nodes(NodeKind.WORKER)
    return [WorkerInfo.model_validate_json(orjson.dumps(node_document(node), default=str)) for node in nodes]
