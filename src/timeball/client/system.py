"""`client.queues`, `freezes`, `alerts`, `workers`, `handlers`, `schedules`, `time` and `system`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal

from timeball.client.requests import (
    ApiRequest,
    ClientType,
    IterateMethod,
    Method,
    Page,
    Resource,
    get,
    parse_list,
    parse_model,
    parse_nothing,
    parse_page,
    path_of,
    post,
    raw_content,
)
from timeball.client.types import (
    Alert,
    AuditRecord,
    Collision,
    Concern,
    Diagnosis,
    FireTimes,
    Forecast,
    Freeze,
    Handler,
    HandlerCheck,
    Health,
    Metrics,
    Moment,
    Node,
    Purged,
    Queue,
    Series,
    Stats,
    Suggestions,
    Timeline,
)
from timeball.domain.policies import OnGap, OnRepeat, Shift
from timeball.domain.values.wording import Duration, parse_seconds


def list_queues() -> ApiRequest[list[Queue]]:
    """Queues that have a ready or running execution, a pause or a limit, by name: the first 200."""
    return get("/queues", parse_list(Queue), limit=200)


def fetch_queue(name: str) -> ApiRequest[Queue]:
    """One queue; a queue that was never used is empty."""
    return get(path_of("queues", name), parse_model(Queue))


def pause_queue(name: str, reason: str | None = None, until: Moment | None = None) -> ApiRequest[Queue]:
    """Pause a queue: none of its executions is claimed until it is resumed, by `resume` or at *until*; running ones go on."""
    return post(path_of("queues", name, "pause"), parse_model(Queue), {"until": until, "reason": reason})


def resume_queue(name: str, reason: str | None = None) -> ApiRequest[Queue]:
    """Resume a paused queue."""
    return post(path_of("queues", name, "resume"), parse_model(Queue), {"reason": reason})


def limit_queue(name: str, max_running: int | None, reason: str | None = None) -> ApiRequest[Queue]:
    """Limit how many executions of a queue run at the same time; None removes the limit."""
    body: dict[str, Any] = {"max_running": max_running}
    return ApiRequest(
        "PATCH",
        path_of("queues", name),
        parse_model(Queue),
        body=body if reason is None else {**body, "reason": reason},
    )


def expect_of_queue(
    name: str,
    *,
    max_oldest_wait: Duration | EllipsisType | None = ...,
    must_be_served: bool | None = None,
    reason: str | None = None,
) -> ApiRequest[Queue]:
    """Say what is expected of a queue: nothing waits in it for longer, a worker serves it. What is not given stays as it is.

    An alert opens while it is not so. *max_oldest_wait* of None expects nothing of its waits.
    """
    body: dict[str, Any] = {} if must_be_served is None else {"must_be_served": must_be_served}
    if not isinstance(max_oldest_wait, EllipsisType):
        span = None if max_oldest_wait is None else parse_seconds(max_oldest_wait, "max_oldest_wait")
        body["max_oldest_wait_seconds"] = span
    if reason is not None:
        body["reason"] = reason
    return ApiRequest("PATCH", path_of("queues", name), parse_model(Queue), body=body)


def purge_queue(name: str, *, confirm: str, reason: str | None = None) -> ApiRequest[Purged]:
    """Cancel all executions that are queued there; *confirm* is the name of the queue once more."""
    return post(path_of("queues", name, "purge"), parse_model(Purged), {"confirm": confirm, "reason": reason})


class QueuesApi(Resource[ClientType]):
    """Queues."""

    list = Method(list_queues)
    get = Method(fetch_queue)
    pause = Method(pause_queue)
    resume = Method(resume_queue)
    limit = Method(limit_queue)
    expect = Method(expect_of_queue)
    purge = Method(purge_queue)


def list_freezes(*, past: bool = False) -> ApiRequest[list[Freeze]]:
    """The freezes that hold now or are to come; with *past*, also those that are over."""
    return get("/freezes", parse_list(Freeze), past=past or None)


def fetch_freeze(freeze: str) -> ApiRequest[Freeze]:
    """One freeze."""
    return get(path_of("freezes", freeze), parse_model(Freeze))


def create_freeze(
    until: Moment,
    *,
    queue: str | None = None,
    tag: str | None = None,
    job: str | None = None,
    everything: bool = False,
    start: Moment | None = None,
    afterwards: Literal["skip", "latest", "all"] | None = None,
    reason: str | None = None,
) -> ApiRequest[Freeze]:
    """Let nothing of a queue, a tag, a job or of everything start from *start* (or now) until an instant."""
    body = {
        "queue": queue,
        "tag": tag,
        "job": job,
        "everything": everything or None,
        "from": start,
        "until": until,
        "afterwards": afterwards,
        "reason": reason,
    }
    return post("/freezes", parse_model(Freeze), body)


def end_freeze(freeze: str, reason: str | None = None) -> ApiRequest[None]:
    """End a freeze now: what it held back goes on."""
    return ApiRequest("DELETE", path_of("freezes", freeze), parse_nothing).with_params(reason=reason)


class FreezesApi(Resource[ClientType]):
    """Freezes."""

    list = Method(list_freezes)
    get = Method(fetch_freeze)
    create = Method(create_freeze)
    end = Method(end_freeze)


def list_workers() -> ApiRequest[list[Node]]:
    """The workers whose lease has not expired."""
    return get("/workers", parse_list(Node))


def list_schedulers() -> ApiRequest[list[Node]]:
    """The schedulers whose lease has not expired."""
    return get("/schedulers", parse_list(Node))


def fetch_node(node_id: str) -> ApiRequest[Node]:
    """One worker or scheduler."""
    return get(path_of("workers", node_id), parse_model(Node))


def drain_node(node_id: str, reason: str | None = None) -> ApiRequest[Node]:
    """Drain a worker or scheduler: it claims nothing more, and exits when its running executions have finished."""
    return post(path_of("workers", node_id, "drain"), parse_model(Node), {"reason": reason})


class WorkersApi(Resource[ClientType]):
    """Workers and schedulers."""

    list = Method(list_workers)
    schedulers = Method(list_schedulers)
    get = Method(fetch_node)
    drain = Method(drain_node)


def search_handlers(*, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Handler]]:
    """Every handler: built-in ones, those of installed packages, and those that workers know or have published."""
    return get("/handlers", parse_page(Handler), limit=limit, cursor=cursor)


def fetch_handler(name: str) -> ApiRequest[Handler]:
    """One handler."""
    return get(path_of("handlers", name), parse_model(Handler))


def check_handlers(handlers: Sequence[Mapping[str, Any]], cursor: str | None = None) -> ApiRequest[HandlerCheck]:
    """Stored payloads that do not fit other schemas; each of *handlers* has a `name` and a `payload_schema`."""
    return post("/handlers/check", parse_model(HandlerCheck), {"handlers": list(handlers), "cursor": cursor})


class HandlersApi(Resource[ClientType]):
    """Handlers."""

    list = Method(search_handlers)
    iterate = IterateMethod(search_handlers)
    get = Method(fetch_handler)
    check = Method(check_handlers)


def preview_schedule(
    *,
    schedule: str | None = None,
    interval_seconds: float | None = None,
    scheduled_at: Moment | None = None,
    after: str | None = None,
    timezone: str = "UTC",
    on_gap: str = OnGap.NEXT_VALID.value,
    on_repeat: str = OnRepeat.FIRST.value,
    name: str | None = None,
    skip_on: Sequence[str] = (),
    only_on: Sequence[str] = (),
    shift: str = Shift.NONE.value,
    since: Moment | None = None,
    count: int = 10,
    queue: str | None = None,
    job: str | None = None,
    payload: Any = None,
) -> ApiRequest[FireTimes]:
    """When a schedule would fire, in words and as instants, with notes where the clock changes.

    *name* is the name of the job, from which `H` in its schedule is derived. With a *queue*, also what else runs there at the next
    instant, and how many slots that needs; *job* is not counted. With a *payload*, also what its references stand for then.
    """
    body = {
        "schedule": schedule,
        "interval_seconds": interval_seconds,
        "scheduled_at": scheduled_at,
        "after": after,
        "timezone": timezone,
        "on_gap": on_gap,
        "on_repeat": on_repeat,
        "name": name,
        "skip_on": list(skip_on),
        "only_on": list(only_on),
        "shift": shift,
        "since": since,
        "count": count,
        "queue": queue,
        "job": job,
        "payload": payload,
    }
    return post("/schedules/preview", parse_model(FireTimes), body)


def suggest_schedules(
    *, queues: Sequence[str] = (), at: Moment | None = None, days: int = 7, timezone: str = "UTC"
) -> ApiRequest[Suggestions]:
    """Suggest which jobs that collide in these queues, at that instant, to move so that fewer run at once.

    Nothing is changed. Apply a suggestion by `jobs.update` with its changes and its version.
    """
    body = {"queues": list(queues), "at": at, "days": days, "timezone": timezone}
    return post("/schedules/suggest", parse_model(Suggestions), body)


class SchedulesApi(Resource[ClientType]):
    """Previews and suggestions of schedules."""

    preview = Method(preview_schedule)
    suggest = Method(suggest_schedules)


def timeline(
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    queue: str | None = None,
    rows: Literal["jobs", "queues", "workers"] = "jobs",
    limit: int | None = None,
    width: int | None = None,
) -> ApiRequest[Timeline]:
    """Past, running and predicted runs between two instants, merged for a drawing of *width* pixels."""
    span = {"from": start, "to": end}
    return get("/timeline", parse_model(Timeline), **span, queue=queue, rows=rows, limit=limit, width=width)


def forecast(
    *,
    days: int = 7,
    queue: str | None = None,
    measure: Literal["busy", "starts"] = "busy",
    timezone: str = "UTC",
) -> ApiRequest[Forecast]:
    """How many slots each hour of the next days needs, and how good the forecast for yesterday was."""
    return get("/forecast", parse_model(Forecast), days=days, queue=queue, measure=measure, timezone=timezone)


def collisions(*, days: int = 7, queue: str | None = None, timezone: str = "UTC") -> ApiRequest[list[Collision]]:
    """Jobs that together need more slots than there are, and when."""
    return get("/forecast/collisions", parse_list(Collision), days=days, queue=queue, timezone=timezone)


def calendar(*, days: int = 7, queue: str | None = None, timezone: str = "UTC") -> ApiRequest[bytes]:
    """The runs of the next days as an iCalendar file."""
    return get("/calendar.ics", raw_content, days=days, queue=queue, timezone=timezone)


class TimeApi(Resource[ClientType]):
    """Timelines, forecasts and calendars."""

    timeline = Method(timeline)
    forecast = Method(forecast)
    collisions = Method(collisions)
    calendar = Method(calendar)


def health() -> ApiRequest[Health]:
    """The database, its schema, and whether schedulers and workers are alive; returned also if a check fails."""
    return ApiRequest("GET", "/health", parse_model(Health), accepted_statuses=frozenset({503}))


def stats(
    hours: float = 24, *, queue: str | None = None, handler: str | None = None, job: str | None = None
) -> ApiRequest[Stats]:
    """Waiting and running executions, and the outcomes of the last hours; of all, or of one queue, handler or job."""
    return get("/stats", parse_model(Stats), hours=hours, queue=queue, handler=handler, job=job)


def metrics() -> ApiRequest[Metrics]:
    """The present and the last hour."""
    return get("/metrics", parse_model(Metrics))


def series(
    hours: float = 24, *, queue: str | None = None, handler: str | None = None, job: str | None = None
) -> ApiRequest[Series]:
    """The counts of the last hours, step by step."""
    return get("/metrics/executions", parse_model(Series), hours=hours, queue=queue, handler=handler, job=job)


def doctor() -> ApiRequest[Diagnosis]:
    """All checks of the doctor: what was found, and what to type."""
    return get("/doctor", parse_model(Diagnosis))


def attention() -> ApiRequest[list[Concern]]:
    """What needs attention, the most severe first."""
    return get("/attention", parse_list(Concern))


def list_audit(
    *, subject: str | None = None, actor: str | None = None, limit: int | None = None, cursor: str | None = None
) -> ApiRequest[Page[AuditRecord]]:
    """Every change with actor, time and reason, the latest first."""
    return get("/audit", parse_page(AuditRecord), subject=subject, actor=actor, limit=limit, cursor=cursor)


def list_alerts(
    *,
    state: str | Sequence[str] | None = None,
    severity: Literal["critical", "warning"] | None = None,
    kind: str | None = None,
    job: str | None = None,
    queue: str | None = None,
    tag: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ApiRequest[Page[Alert]]:
    """Facts that a person should act upon, the latest first: open and acknowledged ones, unless states are given."""
    states = [state] if isinstance(state, str) else state
    chosen = {"state": states, "severity": severity, "kind": kind, "job": job, "queue": queue, "tag": tag}
    return get("/alerts", parse_page(Alert), **chosen, limit=limit, cursor=cursor)


def fetch_alert(alert: str) -> ApiRequest[Alert]:
    """One alert."""
    return get(path_of("alerts", alert), parse_model(Alert))


def acknowledge_alert(alert: str, *, until: Moment | None = None, reason: str | None = None) -> ApiRequest[Alert]:
    """Say that a person knows of an open alert, until an instant or until it is resolved."""
    return post(path_of("alerts", alert, "acknowledge"), parse_model(Alert), {"until": until, "reason": reason})


def unacknowledge_alert(alert: str, reason: str | None = None) -> ApiRequest[Alert]:
    """Take an acknowledgement back."""
    return post(path_of("alerts", alert, "unacknowledge"), parse_model(Alert), {"reason": reason})


class AlertsApi(Resource[ClientType]):
    """Alerts."""

    list = Method(list_alerts)
    iterate = IterateMethod(list_alerts)
    get = Method(fetch_alert)
    acknowledge = Method(acknowledge_alert)
    unacknowledge = Method(unacknowledge_alert)


class SystemApi(Resource[ClientType]):
    """Health, metrics, the doctor and the audit."""

    health = Method(health)
    stats = Method(stats)
    metrics = Method(metrics)
    series = Method(series)
    doctor = Method(doctor)
    attention = Method(attention)
    audit = Method(list_audit)
    iterate_audit = IterateMethod(list_audit)
