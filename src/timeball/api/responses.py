"""JSON responses, pages, field selection, and exports as CSV, JSON lines or JSON."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from timeball.domain.search import MAX_PAGE_SIZE, PageRequest, ResultPage
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.wording import FORMULA_BEGINNINGS

Item = TypeVar("Item")
Document = dict[str, Any]


# Serialising more characters takes some milliseconds.
_LARGE = 32 * 1024
_JSON = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def json_bytes(document: Any) -> bytes:
    """A document as JSON."""
    return orjson.dumps(document, default=str, option=_JSON)


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as a response."""
    return Response(json_bytes(document), status, dict(headers or {}), "application/json")


def page_document(page: ResultPage[Item], request: PageRequest, show_item: Callable[[Item], Document]) -> Document:
    """A page of a list: by cursor, and with totals if the page was requested by number."""
    document: Document = {
        "data": [show_item(item) for item in page.items],
        "next_cursor": page.next_cursor,
        "has_more": page.next_cursor is not None,
    }
    if page.looked_at is not None:
        document |= {"searched_to": page.searched_to, "looked_at": page.looked_at}
    if page.total is not None:
        document |= {"total": page.total.count, "total_is_exact": page.total.is_exact}
    if request.page is not None and page.total is not None:
        pages = -(-page.total.count // request.limit)
        document |= {"page": request.page, "limit": request.limit, "total_pages": pages}
    return document


async def in_thread_if_large(work: Callable[[], Item], characters: int) -> Item:
    """Run *work*, which handles so many characters of JSON: in a thread if they are many, so that the loop serves other requests."""
    return await asyncio.to_thread(work) if characters > _LARGE else work()


_MAX_FIELDS_LENGTH = 2_000


FieldsParam = Annotated[
    str | None, Query(max_length=_MAX_FIELDS_LENGTH, description="Only these fields of each item, separated by commas.")
]
ExpandParam = Annotated[
    str | None,
    Query(
        max_length=200,
        description="More about each item, separated by commas: `job` and `attempts` of an execution, `next` times of a job.",
    ),
]


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The fields to show, if not all of them, and what to show in addition."""

    fields: tuple[str, ...] | None
    expand: frozenset[str]

    def shows(self, field: str) -> bool:
        """Whether a field is shown."""
        return self.fields is None or field in self.fields

    def fit(self, document: Document) -> Document:
        """A document with only the selected fields; expansions stay."""
        if self.fields is None:
            return document
        kept = {*self.fields, *self.expand}
        return {name: value for name, value in document.items() if name in kept}

    def fit_page(self, page: Document) -> Document:
        """A page whose items have only the selected fields."""
        return page | {"data": [self.fit(item) for item in page["data"]]}


def field_selection(model: type[BaseModel], expandable: Sequence[str]) -> Callable[..., FieldSelection]:
    """The dependency that reads `fields` and `expand` for items of a model."""
    known = tuple(model.model_fields)

    def select(fields: FieldsParam = None, expand: ExpandParam = None) -> FieldSelection:
        kept = None if fields is None else _selected_names(fields, "fields", (*known, *expandable))
        return FieldSelection(kept, frozenset(() if expand is None else _selected_names(expand, "expand", expandable)))

    return select


def _selected_names(text: str, parameter: str, known: Collection[str]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None or not words:
        raise unexpected_value(parameter, unknown or "", f"some of {', '.join(known)}", hint="check its spelling")
    return words


ExportFormat = Literal["csv", "jsonl", "json"]
ByteOrderMark = Annotated[
    bool, Query(description="Begin a CSV with a byte order mark, for spreadsheets that need it to read UTF-8.")
]
ReadPage = Callable[[PageRequest], Awaitable[ResultPage[Any]]]
Pages = AsyncIterator[ResultPage[Any]]

_MEDIA_TYPES = {"csv": "text/csv", "jsonl": "application/jsonl", "json": "application/json"}


# Some spreadsheets need it to read UTF-8.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ITEMS_AT_A_TIME = 20


# We put an apostrophe before these. A text that begins with an apostrophe gets another one, so that reading it back is exact.
_FORMULA_PREFIXES = (*FORMULA_BEGINNINGS, "'")


async def export_response(
    kind: ExportFormat,
    name: str,
    columns: list[str],
    read_page: ReadPage,
    show_item: Callable[[Any], Document],
    *,
    has_mark: bool = False,
) -> StreamingResponse:
    """A whole list as a file, streamed page by page; the first page is read before the response begins, so that errors are still problems.

    *has_mark* begins a CSV with a byte order mark, which some spreadsheets need to read UTF-8.
    """
    pages = _pages(await read_page(PageRequest(limit=MAX_PAGE_SIZE)), read_page)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    lines = _lines(kind, columns, pages, show_item, has_mark)
    return StreamingResponse(lines, headers=headers, media_type=_MEDIA_TYPES[kind])


def _lines(
    kind: ExportFormat, columns: list[str], pages: Pages, show_item: Callable[[Any], Document], has_mark: bool
) -> AsyncIterator[bytes]:
    match kind:
        case "csv":
            return _csv(columns, pages, show_item, has_mark)
        case "jsonl":
            return _jsonl(pages, show_item)
        case "json":
            return _json(pages, show_item)


async def _pages(page: ResultPage[Any], read_page: ReadPage) -> Pages:
    yield page
    while page.next_cursor is not None:
        page = await read_page(PageRequest(limit=MAX_PAGE_SIZE, cursor=page.next_cursor))
        yield page


async def _encoded_items(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[list[bytes]]:
    """Some items at a time as JSON, written in a thread: an item may be as large as a payload."""
    async for page in pages:
        for first in range(0, len(page.items), _ITEMS_AT_A_TIME):
            items = page.items[first : first + _ITEMS_AT_A_TIME]
            yield await asyncio.to_thread(_encode_items, items, show_item)


def _encode_items(items: Sequence[Any], show_item: Callable[[Any], Document]) -> list[bytes]:
    return [json_bytes(show_item(item)) for item in items]


async def _jsonl(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[bytes]:
    async for lines in _encoded_items(pages, show_item):
        yield b"".join(line + b"\n" for line in lines)


async def _json(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[bytes]:
    before = b"["
    async for lines in _encoded_items(pages, show_item):
        yield before + b",\n".join(lines)
        before = b",\n"
    yield b"]\n" if before != b"[" else b"[]\n"


async def _csv(
    columns: list[str], pages: Pages, show_item: Callable[[Any], Document], has_mark: bool
) -> AsyncIterator[bytes]:
    yield (_BYTE_ORDER_MARK if has_mark else b"") + _rows([columns])
    async for lines in _encoded_items(pages, show_item):
        # Through JSON, so that instants look the same in both formats.
        documents = map(orjson.loads, lines)
        yield _rows([[cell(document[column]) for column in columns] for document in documents])


def _rows(rows: list[list[str]]) -> bytes:
    buffer = StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue().encode()


def cell(value: Any) -> str:
    """A value as the text of a cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return "'" + text if text.startswith(_FORMULA_PREFIXES) else text


def text_of_cell(text: str) -> str:
    """The text from which `cell` made a cell."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA_PREFIXES) else text


def etag_of_version(version: int) -> dict[str, str]:
    """The header that tells the version of a resource."""
    return {"ETag": f'"{version}"'}
