"""`timeball groups`: parts that run side by side, and what follows when all of them have ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import json_type, read_file
from timeball.cli.output import STATE_STYLES, Column, ColumnKind, Document, Printer, as_document, single_line
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Reason, Yes, command, command_group, list_command
from timeball.domain.follow_ups import GroupState
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.wording import counted
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

groups = command_group(
    "groups",
    "Groups: parts that run side by side, and what follows when all have ended.",
    ["timeball groups", "timeball groups create book.json", "timeball groups show GROUP"],
)

GroupRef = Annotated[str, typer.Argument(metavar="GROUP", help="A group's id, grp_...")]

_BAR_WIDTH = 20
_PAGE = 200
_STYLES = STATE_STYLES | {"open": "cyan", "failed": "bold red"}
_SIGNS = {"succeeded": "✓", "failed": "✗", "dead": "✗", "cancelled": "✗", "skipped": "✗", "running": "►"}


def _bar(group: Document) -> str:
    """`████████············ 8 of 20`: how many parts have ended."""
    ended = group["total"] - group["waits_for"]
    width = _BAR_WIDTH * ended // group["total"]
    return f"{'█' * width}{'·' * (_BAR_WIDTH - width)} {ended:,} of {group['total']:,}"


_COLUMNS = [
    Column("id"),
    Column("handler"),
    Column("state", kind=ColumnKind.STATE),
    Column("progress", _bar),
    Column("failed", kind=ColumnKind.NUMBER),
    Column("by", "created_by"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("closed", "closed_at", ColumnKind.INSTANT),
]
_DETAILS = [
    Column("id"),
    Column("state", kind=ColumnKind.STATE),
    Column("total"),
    Column("succeeded"),
    Column("failed"),
    Column("waits for"),
    Column("inside of", "group"),
    Column("meta"),
    Column("created by"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("closed", "closed_at", ColumnKind.INSTANT),
    Column("followed by", lambda group: " ".join(group.get("followed_by") or ())),
]
_STEP_COLUMNS = [
    Column("part"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("id"),
    Column("error"),
]


@list_command(groups, "timeball groups list", "timeball groups list --state open")
def list_groups(
    session: CliSession,
    state: Annotated[
        str | None, typer.Option("--state", help="Only groups that are open, succeeded or failed.")
    ] = None,
    nested: Annotated[bool, typer.Option("--nested", help="Also groups that are inside of other groups.")] = False,
    limit: Limit = 50,
) -> None:
    """List the groups, the latest first, with how many of their parts have ended."""
    if state is not None and state not in list(GroupState):
        raise unexpected_value("--state", state, "open, succeeded or failed", field="state")

    async def read(client: AsyncClient) -> list[Any]:
        found: Any = client.groups.iterate(state=state, nested=nested, limit=min(limit, 200))  # type: ignore[arg-type]
        return await take(found, limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no groups")


@command(groups, "show", "timeball groups show GROUP", "timeball groups show GROUP --open")
def show_group(
    session: CliSession,
    group: GroupRef,
    is_open: Annotated[bool, typer.Option("--open", help="Only parts that have not ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many parts at most.")] = 200,
) -> None:
    """Show a group as a tree: its parts, what each has begun, and how far it is."""
    document = session.talk(lambda client: _read_tree(client, group, limit, is_open))
    printer = session.printer
    if printer.is_for_programs:
        printer.details(document, _DETAILS)
        return
    if not printer.is_terminal and printer.output is None:
        printer.rows(_flat(document["parts"]), _STEP_COLUMNS)
        return
    _show_tree(document, printer)


async def _read_tree(client: AsyncClient, reference: str, limit: int, is_open: bool) -> Document:
    """A group with up to so many parts, read page after page."""
    whole = dict(as_document(await client.groups.get(reference, limit=min(limit, _PAGE), only_open=is_open)))
    while whole["has_more"] and len(whole["parts"]) < limit:
        left = min(limit - len(whole["parts"]), _PAGE)
        page = as_document(
            await client.groups.get(reference, limit=left, cursor=whole["next_cursor"], only_open=is_open)
        )
        whole |= {name: page[name] for name in ("has_more", "next_cursor")}
        whole["parts"] = [*whole["parts"], *page["parts"]]
    return whole


def _show_tree(group: Document, printer: Printer) -> None:
    title = f"{group['id']} · {group['state']} · created {printer.instant(group['created_at'])}"
    printer.styled(single_line(title), "bold")
    failed = f" · {group['failed']:,} failed" if group["failed"] else ""
    printer.styled(single_line(f"{_bar(group)}{failed}"), _STYLES.get(group["state"], ""))
    for line, state in _tree_lines(group["parts"], ""):
        printer.styled(single_line(line), _STYLES.get(state, ""))
    if group["has_more"]:
        shown = len(group["parts"])
        printer.say(f"{counted(shown, 'part')} shown of {group['total']:,}: more with --limit {min(4 * shown, 10_000)}")
    if group["followed_by"]:
        printer.words(f"followed by {' '.join(group['followed_by'][:10])}")


def _tree_lines(parts: list[Document], indent: str) -> Iterator[tuple[str, str]]:
    """A line for each step of each part, with the state that colours it."""
    for part in parts:
        is_last = part is parts[-1]
        branch, below = ("└ ", "  ") if is_last else ("├ ", "│ ")
        for number, step in enumerate(part["steps"]):
            head = (
                f"{indent}{branch}{part['number']}"
                if not number
                else f"{indent}{below}{' ' * len(str(part['number']))}"
            )
            last = number == len(part["steps"]) - 1
            yield f"{head} {_step_words(step)}{_left_words(part) if last else ''}", step["state"] or ""
            yield from _tree_lines(step["parts"], f"{indent}{below}  ")


def _step_words(step: Document) -> str:
    sign = _SIGNS.get(step["state"], "–")
    if step["group"] is not None:
        hidden = step["group"]["total"] - len(step["parts"])
        return f"{sign} {step['group']['id']} {_bar(step['group'])}{f' ({hidden:,} not shown)' if hidden else ''}"
    error = f": {step['error']}" if step["error"] else ""
    return f"{sign} {step['handler']} {step['execution_id']} {step['state'] or 'is no longer recorded'}{error}"


def _left_words(part: Document) -> str:
    return f" · {counted(part['steps_left'], 'step')} left" if part["steps_left"] else ""


def _flat(parts: list[Document], above: str = "") -> Iterator[Document]:
    """Each step of each part as a row; `2.1` is the first part of the group that is part 2."""
    for part in parts:
        number = f"{above}{part['number']}"
        for step in part["steps"]:
            yield {
                "part": number,
                "state": step["state"],
                "handler": step["handler"],
                "id": step["execution_id"] or step["group"]["id"],
                "error": step["error"],
            }
            yield from _flat(step["parts"], f"{number}.")


@command(groups, "create", "timeball groups create book.json", "timeball groups create book.json --reason import")
def create_group(
    session: CliSession,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='JSON: {"group": [{"handler": ..., "payload": ...}, ...], "then": ..., "on_failure": ...}, {"chain": [...]}, '
            "or a list of calls; - reads stdin.",
        ),
    ],
    reason: Reason = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Accept payloads that the contracts of their handlers refuse.")
    ] = False,
) -> None:
    """Begin a group or a chain that a file describes, all of it or none."""
    from timeball.domain.values.json_text import parse_json

    text = sys.stdin.read() if file == "-" else read_file(Path(file), "file")
    body = parse_json(text, file, field="file", hint='such as {"group": [{"handler": "test.echo", "payload": {}}]}')
    body = {"group": body} if isinstance(body, list) else body
    if not isinstance(body, dict):
        raise InvalidInput(f"{file} is {json_type(body)}, expected a group, a chain or a list of calls", field="file")
    given: dict[str, Any] = {"reason": reason} if reason is not None else {}
    given |= {"unchecked": True} if unchecked else {}
    created = session.talk(lambda client: client.request("POST", "/groups", body | given))
    session.printer.details(created, _DETAILS)
    session.printer.warn(created)


@command(groups, "cancel", "timeball groups cancel GROUP --yes")
def cancel_group(session: CliSession, group: GroupRef, reason: Reason = None, yes: Yes = False) -> None:
    """Cancel what waits of a group, and ask what runs to stop. What follows its failure follows."""
    found = session.talk(lambda client: client.groups.get(group, limit=1))
    session.printer.confirm(f"Cancel {counted(found.waits_for, 'part')} of {found.total:,} of {found.id}?", yes=yes)
    cancelled = session.talk(lambda client: client.groups.cancel(group, reason))
    session.printer.say(f"{counted(cancelled.cancelled, 'execution')} cancelled or asked to stop")
    session.printer.details(cancelled, _DETAILS)
