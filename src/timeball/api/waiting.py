"""Waiting for an execution to end, within a request."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Query
from starlette.responses import Response

from timeball.api.desk import Desk
from timeball.api.views import answer, full_execution_document
from timeball.domain.ids import ExecutionId, show_execution
from timeball.domain.instants import shown
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput

LONGEST_WAIT = timedelta(seconds=60)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def _wait(
    wait: Annotated[
        str | None, Query(max_length=20, description="How long to wait for the end, such as `30s`; at most 60 seconds.")
    ] = None,
) -> timedelta:
    """How long the caller is ready to wait; read before anything is done."""
    span = timedelta(0) if wait is None else parse_span(wait, "wait")
    if span > LONGEST_WAIT:
        raise InvalidInput(f"wait is {shown(wait or '')}, expected at most 60s", field="wait")
    return span


Wait = Annotated[timedelta, Depends(_wait)]


async def awaited_execution(desk: Desk, execution_id: ExecutionId, wait: timedelta) -> Response:
    """An execution: as it ended (200), or as it is when the wait is over (202), which the end of this process brings about too."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait.total_seconds(), _FIRST_PAUSE
    while loop.time() < deadline and not desk.live.is_closed:
        if (await desk.insights.find_execution(str(execution_id))).state.is_final:
            return await shown_execution(desk, execution_id, 200)
        await asyncio.sleep(min(pause, max(deadline - loop.time(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return await shown_execution(desk, execution_id, 202)


async def shown_execution(desk: Desk, execution_id: ExecutionId, status: int) -> Response:
    """An execution in full, as an answer."""
    view = await desk.insights.view_execution(str(execution_id))
    headers = {"Location": f"/api/v1/executions/{show_execution(execution_id)}"} if status == 202 else None
    return answer(full_execution_document(view), status, headers)
