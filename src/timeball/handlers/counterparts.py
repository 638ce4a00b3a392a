"""What the options and calls of other job queues are called here; read only when one is not known.

docs/howto/switch.md has them by library, with those that have no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

# By the option of another library: what to write here.
COUNTERPARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Celery
        "countdown": 'options(delay="10m")',
        "eta": "options(at=...)",
        "headers": "options(meta={...}), and current.meta in the handler",
        "max_retries": "retries",
        "autoretry_for": "retry_on; without it every error is retried",
        "dont_autoretry_for": "no_retry",
        "throws": "expected",
        "retry_backoff": "backoff, which doubles by itself",
        "retry_backoff_max": "max_backoff",
        "default_retry_delay": "backoff",
        "retry_jitter": "nothing: retries are spread by themselves",
        "time_limit": "timeout",
        "soft_time_limit": "timeout, which is followed by a grace",
        "acks_late": 'nothing: it is so by default; its opposite is delivery="at_most_once"',
        "reject_on_worker_lost": "max_lost",
        "task_id": "options(key=...)",
        "link": "options(on_success=other.call(...))",
        "link_error": "options(on_failure=other.call(...))",
        "rate_limit": "nothing: there are no limits by time; max_running limits how many run together",
        "ignore_result": "nothing: a handler that returns None keeps no result",
        "bind": "nothing: `from timeball import current` in the handler",
        "base": "@tb.around_run, which surrounds every run",
        "serializer": "nothing: arguments are JSON",
        "compression": "nothing: arguments are JSON of up to 256 KB",
        "crontab": '@tb.cron("0 9 * * mon-fri")',
        # RQ, rq-scheduler
        "job_timeout": "timeout",
        "job_id": "options(key=...)",
        "ttl": "options(expires=...)",
        "result_ttl": "nothing: the history is kept for the days of TIMEBALL_HOUSEKEEPING__KEEP_DAYS",
        "failure_ttl": "nothing: the history is kept for the days of TIMEBALL_HOUSEKEEPING__KEEP_DAYS",
        "retry": "retries",
        "depends_on": "options(on_success=...), or tb.chain",
        "at_front": "options(priority=100)",
        "repeat": "@tb.every and max_executions",
        "is_async": "Timeball(inline=True)",
        # Dramatiq, Huey
        "actor_name": "name",
        "queue_name": "queue",
        "min_backoff": "backoff",
        "retry_when": "retry_on or no_retry",
        "max_age": "expires",
        "store_results": "nothing: results are kept",
        "retry_delay": "backoff",
        "context": "nothing: `from timeball import current` in the handler",
        "immediate": "Timeball(inline=True)",
        # Django-Q
        "hook": "options(on_success=other.call(...))",
        "sync": "Timeball(inline=True)",
        "group": "tb.group([...])",
        # APScheduler
        "trigger": '@tb.cron("..."), @tb.every("30s") or schedule(at=...)',
        "seconds": '@tb.every("30s")',
        "minutes": '@tb.every("5m")',
        "hours": '@tb.every("2h")',
        "coalesce": 'misfire="latest"',
        "max_instances": "max_running or overlap",
        "misfire_grace_time": "misfire_grace",
        "replace_existing": "nothing: a schedule with the name of another one changes that",
        "next_run_time": "starts_at",
        "start_date": "starts_at",
        "end_date": "ends_at",
        "args": "arguments={...}, by name",
        "kwargs": "arguments={...}",
        "id": "name",
        # arq, SAQ
        "_defer_by": "options(delay=...)",
        "_defer_until": "options(at=...)",
        "_job_id": "options(key=...)",
        "_expires": "options(expires=...)",
        "_queue_name": "options(queue=...)",
        "_job_try": "nothing: current.attempt counts",
        "max_tries": "retries, which does not count the first attempt",
        "keep_result": "nothing: results are kept",
        "unique": "options(key=...)",
        "scheduled": "options(at=...)",
        # BullMQ
        "attempts": "retries, which does not count the first attempt",
        "jobId": "options(key=...)",
        "removeOnComplete": "nothing: the history is kept for the days of TIMEBALL_HOUSEKEEPING__KEEP_DAYS",
        "removeOnFail": "nothing: the history is kept for the days of TIMEBALL_HOUSEKEEPING__KEEP_DAYS",
        "lifo": "nothing: the most urgent goes first; see priority",
        "concurrency": "max_running, or TIMEBALL_WORKER__SLOTS for a worker",
    }
)

# By the method of another library: what to call here.
CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Celery
        "delay": "enqueue(...)",
        "apply_async": "options(...).enqueue(...)",
        "delay_on_commit": "enqueue(...), which joins the transaction of Django; elsewhere options(connection=...)",
        "apply_async_on_commit": "options(...).enqueue(...), which joins the transaction of Django; elsewhere connection=...",
        "apply": "call the function itself, or enqueue(...) under Timeball(inline=True)",
        "s": "call(...)",
        "si": "call(...)",
        "signature": "call(...)",
        "retry": 'raise Retry(after="5s")',
        "update_state": "timeball.current.progress(...)",
        "AsyncResult": "tb.get_run(id)",
        # Dramatiq, Procrastinate, TaskIQ, APScheduler, arq, Django-Q
        "send": "enqueue(...)",
        "send_with_options": "options(...).enqueue(...)",
        "message": "call(...)",
        "message_with_options": "options(...).call(...)",
        "defer": "enqueue(...)",
        "defer_async": "aenqueue(...)",
        "configure": "options(...)",
        "kiq": "aenqueue(...)",
        "adelay": "aenqueue(...)",
        # Huey
        "call_local": "call the function itself",
        "schedule_in": "options(delay=...).enqueue(...)",
    }
)

# The options of an enqueue: given among the arguments, they are in the wrong place.
ENQUEUE_WORDS: Final = frozenset(
    {
        *(
            "at",
            "backoff",
            "connection",
            "delay",
            "delivery",
            "expires",
            "if_exists",
            "key",
            "limit_key",
            "max_backoff",
        ),
        *("max_lost", "max_running", "meta", "on_failure", "on_success", "priority", "queue", "retries", "tags"),
        *("timeout", "timezone", "unchecked", "unique_for"),
    }
)
# Words that are names of arguments far more often than options.
_MOSTLY_ARGUMENTS: Final = frozenset({"args", "kwargs", "id"})


def option_hint(word: str) -> str | None:
    """What to write for an option of another job queue; None if it is not known."""
    here = COUNTERPARTS.get(word)
    return None if here is None else f"{word} of other job queues is here: {here}"


def argument_hint(names: Iterable[str]) -> str | None:
    """What to write for an argument that the function does not have, if one of these is the name of an option."""
    for name in names:
        if name in ENQUEUE_WORDS:
            return f"{name} is an option and not an argument: options({name}=...).enqueue(...)"
        if name not in _MOSTLY_ARGUMENTS and (hint := option_hint(name)) is not None:
            return hint
    return None


def unknown_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that is not there; it says what a method of another job queue is called here."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in CALLS:
        text += f"; {name} of other job queues is here: {CALLS[name]}"
    return AttributeError(text, name=name, obj=owner)
