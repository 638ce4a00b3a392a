"""Lists as files: CSV, JSON lines or one JSON list, streamed page by page, and harmless when a spreadsheet opens them."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from io import StringIO
from typing import Annotated, Any, Literal

import orjson
from fastapi import Query
from starlette.responses import StreamingResponse

from timeball.api.views import Document, to_bytes
from timeball.domain.search import LARGEST_PAGE, Page, PageRequest
from timeball.domain.wording import FORMULA_BEGINNINGS

Format = Literal["csv", "jsonl", "json"]
WithMark = Annotated[
    bool, Query(description="Begin a CSV with a byte order mark, for spreadsheets that need it to read UTF-8.")
]
ReadPage = Callable[[PageRequest], Awaitable[Page[Any]]]
Pages = AsyncIterator[Page[Any]]

_MEDIA_TYPES = {"csv": "text/csv", "jsonl": "application/jsonl", "json": "application/json"}
# Spreadsheets that do not guess UTF-8 do so behind this mark.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ITEMS_AT_A_TIME = 20
# An apostrophe in front of these is ours; one that was there before gets another, so that it can be told apart.
_QUOTED = (*FORMULA_BEGINNINGS, "'")


async def exported(
    kind: Format,
    name: str,
    columns: list[str],
    read_page: ReadPage,
    show_item: Callable[[Any], Document],
    *,
    has_mark: bool = False,
) -> StreamingResponse:
    """All of a list as a file; the first page is read before the answer begins, so that errors are still errors.

    *has_mark* begins a CSV with a byte order mark, for spreadsheets that would not take it for UTF-8 otherwise.
    """
    pages = _pages(await read_page(PageRequest(limit=LARGEST_PAGE)), read_page)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    lines = _lines(kind, columns, pages, show_item, has_mark)
    return StreamingResponse(lines, headers=headers, media_type=_MEDIA_TYPES[kind])


def _lines(
    kind: Format, columns: list[str], pages: Pages, show_item: Callable[[Any], Document], has_mark: bool
) -> AsyncIterator[bytes]:
    match kind:
        case "csv":
            return _csv(columns, pages, show_item, has_mark)
        case "jsonl":
            return _jsonl(pages, show_item)
        case "json":
            return _json(pages, show_item)


async def _pages(page: Page[Any], read_page: ReadPage) -> Pages:
    yield page
    while page.next_cursor is not None:
        page = await read_page(PageRequest(limit=LARGEST_PAGE, cursor=page.next_cursor))
        yield page


async def _shown(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[list[bytes]]:
    """Some items at a time as JSON, made in a thread: an item may be as large as a payload, and others wait for this loop."""
    async for page in pages:
        for first in range(0, len(page.items), _ITEMS_AT_A_TIME):
            some = page.items[first : first + _ITEMS_AT_A_TIME]
            yield await asyncio.to_thread(_shown_items, some, show_item)


def _shown_items(items: Sequence[Any], show_item: Callable[[Any], Document]) -> list[bytes]:
    return [to_bytes(show_item(item)) for item in items]


async def _jsonl(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[bytes]:
    async for lines in _shown(pages, show_item):
        yield b"".join(line + b"\n" for line in lines)


async def _json(pages: Pages, show_item: Callable[[Any], Document]) -> AsyncIterator[bytes]:
    before = b"["
    async for lines in _shown(pages, show_item):
        yield before + b",\n".join(lines)
        before = b",\n"
    yield b"]\n" if before != b"[" else b"[]\n"


async def _csv(
    columns: list[str], pages: Pages, show_item: Callable[[Any], Document], has_mark: bool
) -> AsyncIterator[bytes]:
    yield (_BYTE_ORDER_MARK if has_mark else b"") + _rows([columns])
    async for lines in _shown(pages, show_item):
        # Through JSON, so that an instant looks alike in both formats.
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
    return "'" + text if text.startswith(_QUOTED) else text


def text_of_cell(text: str) -> str:
    """The text that `cell` made a cell of."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_QUOTED) else text
