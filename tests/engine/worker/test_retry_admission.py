"""A dead target is not called more often than its budget allows, and served again soon after it has recovered."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from tests.engine.support import Heard, settle
from tests.engine.worker.manual_worker import start
from tests.support.factories import FAILURE, HANDLER, enqueue, make_owner, only_row, promote_due, seconds, table
from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimedExecution, Failed, Succeeded
from timeball.domain.handler import Handler
from timeball.domain.lifecycle import AttemptFacts, Finish, Postpone, decide
from timeball.domain.policies import RetryPolicy
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId
from timeball.engine.worker.admission import RetryGate
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.handlers.builtin.webhook import host_of
from timeball.handlers.registry import make_handler
from timeball.store.store import Store
from timeball.telemetry.events import AttemptFailed, RetriesHeldBack
from timeball.testing import VirtualClock
from timeball.testing.environment import START

JOBS, OUTAGE = 10_000, 600.0
PATIENT = RetryPolicy(max_retries=12, max_lost=3, initial_backoff_ms=1_000, max_backoff_ms=60_000)


def claim(number: int = 1, attempt: int = 1, lost: int = 0, payload: str = "{}") -> ClaimedExecution:
    own = UUID(int=number)
    return ClaimedExecution(
        id=ExecutionId(own),
        job_id=JobId(own),
        fence=attempt,
        attempt=attempt,
        lost=lost,
        handler=HANDLER,
        payload=payload,
        run_at=START,
        scheduled_for=START,
        timeout_ms=None,
        queue="default",
        priority=50,
        origin="schedule",
        version=1,
        job_name=None,
        expires_at=None,
        meta=None,
        claim_id=ClaimId(own),
        stop=None,
    )


async def record_all(recorder: Recorder) -> None:
    """Let what has ended be handed over, and write it."""
    for _ in range(3):
        await asyncio.sleep(0)
    await settle(recorder)


def the_handler(target: Callable[[str], str | None] | None = None) -> Handler:
    async def called() -> None: ...

    made = make_handler(called, name=HANDLER)
    return (
        made
        if target is None
        else Handler(name=made.name, function=called, style=made.style, binder=made.binder, target=target)
    )


def test_ten_thousand_jobs_and_ten_minutes_of_outage(env: Env, clock: VirtualClock, heard: Heard) -> None:
    """Fault 34. Every job as the engine treats it, by the same decisions, without a database."""
    gate, handler, chance = RetryGate(env, heard, WorkerSettings()), the_handler(), random.Random(34)
    calls: Counter[int] = Counter()
    ends: list[float] = []
    waiting = [(0.0, number, 1) for number in range(JOBS)]
    firsts = [claim(number) for number in range(JOBS)]

    while waiting:
        at, number, attempt = heapq.heappop(waiting)
        clock.advance_to(START + timedelta(seconds=at))
        claimed = firsts[number]._replace(attempt=attempt)
        delay = gate.admit(handler, claimed)
        if delay is not None:
            heapq.heappush(waiting, (at + delay.total_seconds(), number, attempt))
            continue
        calls[int(at)] += 1
        if at >= OUTAGE:
            gate.note_success(handler, claimed)
        outcome = Succeeded() if at >= OUTAGE else Failed(FAILURE)
        match decide(AttemptFacts(attempts=attempt, lost=0, retry=PATIENT), outcome, clock.now(), chance.random()):
            case Postpone(run_at=run_at):
                heapq.heappush(waiting, (at + (run_at - clock.now()).total_seconds(), number, attempt + 1))
            case Finish(state=state):
                assert state == "succeeded", "nothing died of an outage that its retries could outlast"
                ends.append(at)

    retries = calls - Counter({0: JOBS})
    for second in range(int(OUTAGE) - 10):
        wave = JOBS if second == 0 else 0
        assert sum(retries[second + further] for further in range(10)) <= 100 + 0.2 * wave
    assert len(ends) == JOBS
    assert max(ends) <= OUTAGE + PATIENT.max_backoff_ms / 1_000 + 30, (
        "all of them, a round of waiting after the recovery"
    )


def test_without_a_budget_the_target_would_be_called_many_times_more(env: Env, heard: Heard) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=1e9))

    assert all(gate.admit(the_handler(), claim(attempt=2)) is None for _ in range(10_000))


def test_first_attempts_are_never_held_back_nor_those_lost_with_their_worker(env: Env, heard: Heard) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0, retry_budget_share=0))

    assert gate.admit(the_handler(), claim(attempt=1)) is None
    assert gate.admit(the_handler(), claim(attempt=3, lost=2)) is None
    delay = gate.admit(the_handler(), claim(attempt=2))

    assert delay is not None
    assert timedelta(seconds=10) <= delay <= timedelta(seconds=30)


def test_those_held_back_come_again_neither_soon_nor_together(env: Env, heard: Heard) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0))

    delays = [gate.admit(the_handler(), claim(attempt=2)) or timedelta(0) for _ in range(200)]

    assert timedelta(seconds=10) <= min(delays) < timedelta(seconds=12)
    assert timedelta(seconds=28) < max(delays) <= timedelta(seconds=30)


def held_back(gate: RetryGate, handler: Handler, retries: int, payload: str = "{}") -> int:
    return sum(gate.admit(handler, claim(attempt=2, payload=payload)) is not None for _ in range(retries))


def test_first_attempts_add_to_the_retry_budget(env: Env, heard: Heard) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0, retry_budget_share=0.5))
    for _ in range(10):
        gate.admit(the_handler(), claim(attempt=1))

    assert held_back(gate, the_handler(), retries=8) == 8 - 10 // 2


def test_only_a_retry_that_succeeds_gives_its_place_back(env: Env, heard: Heard) -> None:
    gate, webhook = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=1)), the_handler(host_of)
    shaky = '{"url": "https://shaky.example"}'
    assert held_back(gate, webhook, retries=10, payload=shaky) == 0

    gate.note_success(webhook, claim(attempt=1, payload=shaky))
    assert held_back(gate, webhook, retries=1, payload=shaky) == 1

    gate.note_success(webhook, claim(attempt=2, payload=shaky))
    assert held_back(gate, webhook, retries=2, payload=shaky) == 1


async def test_what_is_aimed_at_nothing_counts_for_its_handler_and_a_host_for_each_handler_apart(
    env: Env, heard: Heard
) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0))
    for payload in ("{}", "[]", '{"url": "https://down.example"}'):
        gate.admit(the_handler(host_of), claim(attempt=2, payload=payload))

    await gate.tick()

    assert heard == [RetriesHeldBack(HANDLER, 2), RetriesHeldBack(f"{HANDLER} down.example", 1)]


async def test_how_many_were_held_back_is_told_once_a_second(env: Env, heard: Heard) -> None:
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0))
    for _ in range(7):
        gate.admit(the_handler(), claim(attempt=2))

    await gate.tick()
    await gate.tick()

    assert heard == [RetriesHeldBack(HANDLER, 7)]


@pytest.mark.parametrize(
    ("payload", "host"),
    [
        ('{"url": "https://Shop.example:8443/hooks?x=1"}', "shop.example"),
        ('{"url": 7}', None),
        ("[]", None),
        ("{}", None),
        ('{"url": "https://["}', None),
    ],
)
def test_a_webhook_is_aimed_at_its_host(payload: str, host: str | None) -> None:
    assert host_of(payload) == host


def test_hosts_have_budgets_of_their_own(env: Env, heard: Heard) -> None:
    gate, webhook = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=1)), the_handler(host_of)
    down, fine = ('{"url": "https://down.example"}', '{"url": "https://fine.example"}')

    held_back = [gate.admit(webhook, claim(attempt=2, payload=down)) is not None for _ in range(20)]

    assert held_back == [False] * 10 + [True] * 10
    assert gate.admit(webhook, claim(attempt=2, payload=fine)) is None


async def test_a_retry_that_is_held_back_waits_as_retrying_and_is_not_counted(
    store: Store, env: Env, clock: VirtualClock, heard: Heard
) -> None:
    recorder = Recorder(env, heard, store.executions)
    gate = RetryGate(env, heard, WorkerSettings(retry_budget_per_second=0, retry_budget_share=0))
    worker = await start(store, hand_over=recorder.hand_over, retry_gate=gate)
    execution_id = await enqueue(store, initial_backoff_ms=0)
    await worker.sweep_and_claim()
    worker.runner.end(worker.runner.started.pop().claimed, Failed(FAILURE))
    await record_all(recorder)
    await promote_due(store, await make_owner(store))

    await worker.sweep_and_claim()
    await record_all(recorder)

    waiting = await only_row(store, "due")
    assert (waiting["id"], waiting["kind"], waiting["attempts"]) == (execution_id, "retry", 1)
    assert seconds(10) <= waiting["run_at"] - clock.now() <= seconds(30)
    assert [row["number"] for row in await table(store, "attempt")] == [1], "being held back is no attempt"
    assert len(heard.of(AttemptFailed)) == 1
    assert worker.runner.started == []
