"""Queues: how deep, how long the oldest waits, who serves them; pausing and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.problems import Refusal
from timeball.dashboard.inner_api import ApiProblem, Document
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit
from timeball.dashboard.wording import counted

pages = Pages()
_MOST_SHOWN = 100


@pages.get("/queues")
async def queues(visit: Visit) -> Response:
    """The queues in use: all of them by name, or those that need attention most, if they are many."""
    workers = (await visit.api.get("workers"))["data"]
    found = await visit.api.get("queues", sort="need", limit=_MOST_SHOWN)
    rows = [_row(queue, workers) for queue in found["data"]]
    left_out = found["total"] - len(rows)
    if not left_out:
        rows.sort(key=lambda row: row["name"])
    return visit.page("queues.html", part="partials/queues.html", rows=rows, workers=workers, left_out=left_out)


@pages.get("/queues/one")
async def queue(visit: Visit) -> Response:
    """One queue; its name may hold any character, so it is no part of the path."""
    workers = (await visit.api.get("workers"))["data"]
    row = _row(await visit.api.get("queues", _name(visit.query("name"))), workers)
    return visit.page("queue.html", part="partials/queue.html", row=row, error=None, wanted=row["max_running"])


@pages.post("/queues/pause", Role.OPERATOR)
async def pause(visit: Visit) -> Response:
    """Let nothing of a queue be claimed."""
    return await _toggle(visit, "pause", "resume", "is paused; what runs goes on.")


@pages.post("/queues/resume", Role.OPERATOR)
async def resume(visit: Visit) -> Response:
    """Let a paused queue go on."""
    return await _toggle(visit, "resume", "pause", "goes on.")


@pages.post("/queues/limit", Role.EDITOR)
async def limit(visit: Visit) -> Response:
    """Let at most so many run together."""
    name, text = _name(visit.form.get("name", "")), visit.form.get("max_running", "").strip()
    body = {"max_running": _number(text), "reason": visit.form.get("reason") or None}
    try:
        before = await visit.api.get("queues", name)
        await visit.api.change("queues", name, body=body)
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        row = _row(await visit.api.get("queues", name), (await visit.api.get("workers"))["data"])
        return visit.page("queue.html", row=row, error=problem.detail, wanted=text, http_status=422)
    undo = Undo(visit.site_url("/queues/limit"), {"name": name, "max_running": str(before["max_running"] or "")})
    words = f"at most {text} at once" if text else "no limit"
    return visit.go(visit.back("/queues"), f"Queue {name}: {words}.", undo=undo)


@pages.post("/queues/purge", Role.EDITOR)
async def purge(visit: Visit) -> Response:
    """Cancel everything that waits in a queue, once its name was typed."""
    name = _name(visit.form.get("name", ""))
    body = {"confirm": visit.form.get("typed", ""), "reason": visit.form.get("reason") or None}
    done = await visit.api.post("queues", name, "purge", body=body)
    told = f"Queue {name}: {counted(done['cancelled'], 'execution')} cancelled."
    return visit.go(visit.url("/queues/one", name=name), told)


async def _toggle(visit: Visit, verb: str, opposite: str, words: str) -> Response:
    name, reason = _name(visit.form.get("name", "")), visit.form.get("reason") or None
    before = await visit.api.get("queues", name)
    await visit.api.post("queues", name, verb, body={"reason": reason})
    fields = {"name": name, "reason": before["pause_reason"] or "undone" if opposite == "pause" else "undone"}
    return visit.go(
        visit.back("/queues"), f"Queue {name} {words}", undo=Undo(visit.site_url(f"/queues/{opposite}"), fields)
    )


def _row(queue: Document, workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    serving = [worker for worker in workers if not worker["draining"] and _serves(worker, queue["name"])]
    slots = sum(worker["slots"] for worker in serving)
    room = slots if queue["max_running"] is None else min(slots, queue["max_running"])
    return {
        **queue,
        "serving": serving,
        "slots": slots,
        "room": room,
        "is_stranded": bool(queue["depth"] and not serving),
    }


def _serves(worker: Mapping[str, Any], queue: str) -> bool:
    return not worker["queues"] or queue in worker["queues"]


def _name(text: str) -> str:
    if not text.strip():
        raise Refusal(404, "not_found", f"{text[:60]!r} is no queue's name here", hint="choose one of /queues")
    return text


def _number(text: str) -> int | str | None:
    """What was typed, as a number if it is one: the API says what is wrong with the rest."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text
