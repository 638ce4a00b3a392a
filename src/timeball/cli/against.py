"""`timeball check app:tb --against URL`: which stored payloads a version that is not deployed yet would refuse.

A database is read page by page, and each payload is checked by the program itself. A server is sent the schemas of
the program's handlers and checks its payloads by them, so that none of them leaves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import typer

from timeball.errors import InvalidInput

_PAGE = 500

Found = tuple[int, list[Any]]


def run_check_against(reference: str | None, url: str) -> int:
    """Print what does not fit; the exit code says whether everything does."""
    from timeball.cli.session import complete
    from timeball.loading import load_app

    if reference is None:
        raise InvalidInput(
            "--against needs the program whose handlers are to be checked",
            field="app",
            hint=f"name it: timeball check app:tb --against {url}",
        )
    program = load_app(reference)
    is_server = url.startswith(("http://", "https://"))
    found = _on_server(program, url) if is_server else _in_database(program, url)
    return complete(_tell(found, len(program.registry)))


async def _tell(found: AsyncIterator[Found], handlers: int) -> int:
    checked = misfits = 0
    async for number, refused in found:
        checked += number
        misfits += len(refused)
        for one in refused:
            typer.echo(_words(one))
    typer.echo(f"{checked} payloads of {handlers} handlers checked, {misfits} do not fit", err=True)
    return 1 if misfits else 0


def _words(misfit: Any) -> str:
    from timeball.cli.words import harmless

    subject = f"{misfit['kind']} {misfit['id']}" + (f" ({misfit['name']})" if misfit["name"] else "")
    return harmless(f"{subject}, {misfit['handler']}: " + "; ".join(error["detail"] for error in misfit["errors"]))


async def _on_server(program: Any, url: str) -> AsyncIterator[Found]:
    from timeball.client import AsyncClient
    from timeball.client.faces import check_server
    from timeball.handlers.catalogue import contract_of

    check_server(url, "--against")
    contracts = [contract_of(handler) for handler in program.registry]
    handlers = [{"name": contract.name, "payload_schema": contract.schema} for contract in contracts]
    if not handlers:
        return
    async with AsyncClient(url) as client:
        cursor: str | None = None
        while True:
            answer = await client.handlers.check(handlers, cursor)
            yield answer.checked, [one.model_dump() for one in answer.misfits]
            cursor = answer.next_cursor
            if cursor is None:
                return


async def _in_database(program: Any, url: str) -> AsyncIterator[Found]:
    from timeball.api.routes.handlers import misfit_document
    from timeball.insights.contracts import ContractReader
    from timeball.wiring import opened

    checks = {handler.name: handler.binder.check for handler in program.registry}
    # Looked at, never changed: not even its schema.
    settings = program.settings.model_copy(update={"database_url": url, "migrate": False})
    async with opened(settings) as parts:
        async for number, refused in ContractReader(parts.store).misfits(checks, _PAGE):
            yield number, [misfit_document(one) for one in refused]
