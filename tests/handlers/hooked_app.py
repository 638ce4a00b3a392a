"""A program with code around its runs and processes, as a child process imports it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from timeball import ActiveRun, Timeball

tb = Timeball()
tenant: ContextVar[str] = ContextVar("tenant", default="none")
place = threading.local()
STARTED: list[str] = []


@tb.on_worker_start
def open_model() -> None:
    if os.environ.get("HOOKED_APP_BREAKS"):
        raise ConnectionError("no model")
    STARTED.append(f"sync in {os.getpid()}")


@tb.on_worker_start
async def open_cache() -> None:
    STARTED.append(f"async in {os.getpid()}")


@tb.on_worker_stop
def close_model() -> None:
    note = os.environ.get("HOOKED_APP_NOTE")
    if note:
        Path(note).write_text(f"stopped in {os.getpid()}", encoding="utf-8")


@tb.around_run
def with_tenant(run: ActiveRun) -> Iterator[None]:
    token = tenant.set(run.meta.get("tenant", "nobody"))
    place.name = f"{run.handler} {run.attempt}"
    try:
        yield
    finally:
        tenant.reset(token)


@tb.handler(name="child", isolate=True)
def child() -> list[object]:
    return [tenant.get(), place.name, STARTED, os.getpid()]


@tb.handler(name="async_child", isolate=True)
async def async_child() -> list[object]:
    return [tenant.get(), place.name]
