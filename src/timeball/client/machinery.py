"""Queues, nodes, handlers, and schedules to look at, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timeball.client.calls import Call, Page, a, a_page, at, get, many, post
from timeball.client.models import FireTimes, Handler, HandlerCheck, Node, Purged, Queue, Suggestions
from timeball.client.verbs import Face, Group, Verb, Walk
from timeball.client.wishes import Moment


def all_queues() -> Call[list[Queue]]:
    """Queues that have something ready or running, a pause or a limit, by name: the first 200."""
    return get("/queues", many(Queue), limit=200)


def queue(name: str) -> Call[Queue]:
    """One queue; one that nobody has used yet is simply empty."""
    return get(at("queues", name), a(Queue))


def pause_queue(name: str, reason: str | None = None) -> Call[Queue]:
    """Let nothing of a queue be claimed; what runs goes on."""
    return post(at("queues", name, "pause"), a(Queue), {"reason": reason})


def resume_queue(name: str, reason: str | None = None) -> Call[Queue]:
    """Let a paused queue go on."""
    return post(at("queues", name, "resume"), a(Queue), {"reason": reason})


def limit_queue(name: str, max_running: int | None, reason: str | None = None) -> Call[Queue]:
    """Let at most so many executions of a queue run together; None takes the limit away."""
    body: dict[str, Any] = {"max_running": max_running}
    return Call("PATCH", at("queues", name), a(Queue), body=body if reason is None else {**body, "reason": reason})


def purge_queue(name: str, *, confirm: str, reason: str | None = None) -> Call[Purged]:
    """Cancel everything that is queued there and has not begun; *confirm* is the queue's name once more."""
    return post(at("queues", name, "purge"), a(Purged), {"confirm": confirm, "reason": reason})


class Queues(Group[Face]):
    """What can be done with queues."""

    list = Verb(all_queues)
    get = Verb(queue)
    pause = Verb(pause_queue)
    resume = Verb(resume_queue)
    limit = Verb(limit_queue)
    purge = Verb(purge_queue)


def all_workers() -> Call[list[Node]]:
    """The workers that are believed alive."""
    return get("/workers", many(Node))


def all_schedulers() -> Call[list[Node]]:
    """The schedulers that are believed alive."""
    return get("/schedulers", many(Node))


def node(node_id: str) -> Call[Node]:
    """One worker or scheduler."""
    return get(at("workers", node_id), a(Node))


def drain(node_id: str, reason: str | None = None) -> Call[Node]:
    """Ask a worker or scheduler to finish what it runs, take nothing more, and end."""
    return post(at("workers", node_id, "drain"), a(Node), {"reason": reason})


class Workers(Group[Face]):
    """What can be done with workers and schedulers."""

    list = Verb(all_workers)
    schedulers = Verb(all_schedulers)
    get = Verb(node)
    drain = Verb(drain)


def search_handlers(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[Handler]]:
    """Every handler in the box, of installed packages, and that workers have or have published; with what it takes."""
    return get("/handlers", a_page(Handler), limit=limit, cursor=cursor)


def handler(name: str) -> Call[Handler]:
    """One handler."""
    return get(at("handlers", name), a(Handler))


def check_handlers(handlers: Sequence[Mapping[str, Any]], cursor: str | None = None) -> Call[HandlerCheck]:
    """Which stored payloads do not fit other schemas: each of *handlers* has a `name` and a `payload_schema`."""
    return post("/handlers/check", a(HandlerCheck), {"handlers": list(handlers), "cursor": cursor})


class Handlers(Group[Face]):
    """What can be scheduled."""

    list = Verb(search_handlers)
    iterate = Walk(search_handlers)
    get = Verb(handler)
    check = Verb(check_handlers)


def preview(
    *,
    schedule: str | None = None,
    interval_seconds: float | None = None,
    scheduled_at: Moment | None = None,
    timezone: str = "UTC",
    on_gap: str = "next_valid",
    on_repeat: str = "first",
    after: Moment | None = None,
    count: int = 10,
    queue: str | None = None,
    job: str | None = None,
) -> Call[FireTimes]:
    """When a schedule would fire, in words and in instants, with the changes of the clock marked.

    With a *queue*, what else runs there at the next instant, and the slots that needs; *job* is not counted.
    """
    body = {
        "schedule": schedule,
        "interval_seconds": interval_seconds,
        "scheduled_at": scheduled_at,
        "timezone": timezone,
        "on_gap": on_gap,
        "on_repeat": on_repeat,
        "after": after,
        "count": count,
        "queue": queue,
        "job": job,
    }
    return post("/schedules/preview", a(FireTimes), body)


def suggest(
    *, queues: Sequence[str] = (), at: Moment | None = None, days: int = 7, timezone: str = "UTC"
) -> Call[Suggestions]:
    """Which of the jobs that collide in these queues, at that instant, to move so that fewer run at once.

    Nothing is changed; `jobs.update` with the changes and the version of a suggestion applies it.
    """
    body = {"queues": list(queues), "at": at, "days": days, "timezone": timezone}
    return post("/schedules/suggest", a(Suggestions), body)


class Schedules(Group[Face]):
    """Schedules to look at."""

    preview = Verb(preview)
    suggest = Verb(suggest)
