"""The defaults of settings are promises: changing one changes a promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from timeball.config.settings import HousekeepingSettings, SchedulerSettings, WorkerSettings
from timeball.domain import execution, policies
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import Delivery, Misfire, Overlap, RetryPolicy
from timeball.domain.scheduling import civil_time
from timeball.domain.scheduling.occurrences import CATCH_UP_INTERVAL
from timeball.domain.values import json_text, text
from timeball.handlers.builtin import webhook
from timeball.store.db.statements import all_statements


def test_leases_and_sweeps() -> None:
    scheduler, worker, housekeeping = SchedulerSettings(), WorkerSettings(), HousekeepingSettings()

    assert (scheduler.lease_seconds, scheduler.renew_seconds) == (10, 3)
    assert (worker.lease_seconds, worker.renew_seconds) == (15, 5)
    assert housekeeping.reap_seconds == 2
    assert (scheduler.promotion_window_ms, worker.hold_limit) == (500, 500)
    assert housekeeping.keep_days == 30


def test_tries() -> None:
    spec, policy = JobSpec(handler="h"), RetryPolicy()

    assert (spec.max_retries, spec.max_lost) == (policy.max_retries, policy.max_lost) == (3, 3)
    assert (spec.initial_backoff_ms, spec.max_backoff_ms) == (1_000, 3_600_000)
    assert (policy.initial_backoff_ms, policy.max_backoff_ms) == (1_000, 3_600_000)
    assert policy.delay(40, chance=0) < timedelta(seconds=1), "full jitter"
    assert timedelta(minutes=59) < policy.delay(40, chance=0.999) <= timedelta(hours=1)
    assert Delivery(spec.delivery) is Delivery.AT_LEAST_ONCE


def test_the_retry_budget_of_a_target() -> None:
    worker = WorkerSettings()

    assert (worker.retry_budget_share, worker.retry_budget_per_second) == (0.2, 10)


def test_what_was_missed() -> None:
    spec = JobSpec(handler="h")

    assert (spec.misfire, spec.overlap) == (Misfire.LATEST, Overlap.SKIP)
    assert timedelta(seconds=spec.misfire_grace_seconds) == policies.DEFAULT_MISFIRE_GRACE == timedelta(seconds=30)
    assert spec.misfire_cap == policies.DEFAULT_MISFIRE_CAP == 100
    assert timedelta(seconds=1) / 10 == CATCH_UP_INTERVAL


def test_sizes() -> None:
    assert json_text.MAX_PAYLOAD_BYTES == 256 * 1024
    assert execution.MAX_LOG_BYTES == 1024 * 1024
    assert text.MAX_LABEL == 200
    assert webhook.MAX_BODY_BYTES == 64 * 1024


def test_time() -> None:
    assert datetime(1970, 1, 1, tzinfo=UTC) == civil_time.MIN_INSTANT
    assert civil_time.MAX_INSTANT.year == 2199
    assert civil_time.MIN_INTERVAL_SECONDS == 1
    assert webhook.WebhookPayload.model_fields["timeout"].default == 15_000


def test_one_level_of_priority_is_worth_five_minutes() -> None:
    """A level is a quarter of the scale: 25 points."""
    for name in ("claim", "unblock"):
        assert "priority * interval '12 seconds'" in all_statements()[name].numbered()
    assert 25 * timedelta(seconds=12) == timedelta(minutes=5)
