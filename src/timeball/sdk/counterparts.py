"""What the options of other job queues are called here; read only when an option is not known.

docs/howto/switch.md has them by library, with those that have no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
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
