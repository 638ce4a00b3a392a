"""The gates that an execution passes before it starts; each checks one condition and answers in one sentence.

Where the engine decides, a gate asks the engine's own function `owed_occurrences`, or has a case for each policy as
`plan_promotion` has. Where a statement decides (a paused queue, a full limit, the order of a lane), the facts are read with the
statement's own conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from shlex import quote
from typing import assert_never

from timeball.domain.execution import DueKind, Origin
from timeball.domain.explain.facts import (
    Competitor,
    ExecutionTable,
    ExplainFacts,
    GateResult,
    LimitFacts,
    competitor_ids,
    not_asked,
    passed,
    stopped,
    trigger_command,
)
from timeball.domain.freeze import format_freeze_id
from timeball.domain.handler import short_fingerprint
from timeball.domain.node import NodeStatus
from timeball.domain.policies import Overlap
from timeball.domain.scheduling.occurrences import owed_occurrences
from timeball.domain.scheduling.schedule import After, Manual
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.domain.values.wording import counted, duration_in_words, instant_in_words, listed, ordinal

# A live scheduler promotes a due row within this time; after it, the scheduler itself is late.
_PROMOTION_TIME = timedelta(seconds=2)
# Nodes follow the database's clock; a node that knows it less accurately than this would start executions late.
WORST_CLOCK = timedelta(milliseconds=100)


def check_enabled(facts: ExplainFacts) -> GateResult:
    """Whether the job is neither paused nor deleted."""
    job = facts.job
    if job is None:
        return passed("an enqueued execution does not depend on a job")
    name = job.name or format_job_id(job.id)
    if job.deleted_at is not None and facts.execution is None:
        return stopped(f"the job was deleted at {instant_in_words(job.deleted_at, facts.now)}", "create it again")
    if job.paused_at is None:
        return passed("the job is active")
    until = "" if job.paused_until is None else f" until {instant_in_words(job.paused_until, facts.now)}"
    because = f": {job.pause_reason}" if job.pause_reason else ""
    words = f"the job has been paused since {instant_in_words(job.paused_at, facts.now)}{until}{because}"
    if facts.execution is None or facts.is_parked:
        return stopped(words, links=(format_job_id(job.id),), command=f"timeball jobs resume {quote(name)}")
    return passed(f"{words}; the pause does not hold this execution")


def check_freeze(facts: ExplainFacts) -> GateResult:
    """Whether no freeze holds it."""
    freeze = facts.freeze
    if freeze is None:
        return passed("no freeze holds it")
    because = f": {freeze.reason}" if freeze.reason else ""
    until = instant_in_words(freeze.until_at, facts.now)
    return stopped(
        f"{freeze.what} is frozen until {until} by {freeze.actor}{because}",
        links=(format_freeze_id(freeze.id),),
        command=f"timeball unfreeze {format_freeze_id(freeze.id)}",
    )


def check_due(facts: ExplainFacts) -> GateResult:
    """Whether the schedule named this occurrence, or has any left."""
    execution, job = facts.execution, facts.job
    if execution is not None:
        return passed(
            f"it is an execution by {execution.origin}, for {instant_in_words(execution.scheduled_for, facts.now)}"
        )
    if job is None or job.paused_at is not None:
        return not_asked("a paused job has no next occurrence")
    name = job.name or format_job_id(job.id)
    if isinstance(job.rule, Manual):
        return stopped("the job has no schedule: it runs only when it is triggered", command=trigger_command(name))
    if isinstance(job.rule, After):
        return _without_success(job.rule)
    if job.rule.ends_at is not None and job.rule.ends_at < facts.now:
        return stopped(
            f"its schedule ended at {instant_in_words(job.rule.ends_at, facts.now)}",
            "remove its end",
            command=f"timeball jobs edit {quote(name)} --set ends_at=null",
        )
    return stopped(
        f"its schedule has nothing left: {job.rule.describe()}",
        "give it another schedule, or run it once more",
        command=trigger_command(name),
    )


def _without_success(rule: After) -> GateResult:
    if rule.cause_id is None:
        return stopped(f"the job that it came after, {rule.cause}, is deleted", "give it another schedule")
    return stopped(
        f"it runs after each success of {rule.cause}, and waits for the next one",
        f"ask why {rule.cause} does not run",
        command=f"timeball why {quote(rule.cause)}",
    )


def check_late_policy(facts: ExplainFacts) -> GateResult:
    """Whether the misfire policy still runs it."""
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return not_asked("only a scheduled occurrence can be too late")
    if (
        facts.state_table is not ExecutionTable.DUE
        or facts.due_kind not in (DueKind.OCCURRENCE, DueKind.LATER)
        or execution.run_at is None
    ):
        return passed("it was in time")
    owed = owed_occurrences(job, facts.due_kind, execution.run_at, execution.scheduled_for, facts.now)
    late = facts.now - execution.run_at
    grace = duration_in_words(job.misfire.grace)
    if late <= job.misfire.grace:
        return passed(f"it is not late (grace {grace})")
    words = f"it is {duration_in_words(late)} late, past its grace of {grace}; the policy `{job.misfire.policy}`"
    if execution.scheduled_for in owed.run:
        return passed(f"{words} runs it nevertheless")
    return stopped(
        f"{words} will record it as skipped",
        "to run what was missed, set misfire to latest or all, or backfill it",
        (format_job_id(job.id),),
    )


def check_expiry(facts: ExplainFacts) -> GateResult:
    """Whether it may still begin."""
    expires_at = None if facts.execution is None else facts.execution.expires_at
    if expires_at is None:
        return passed("it does not expire")
    when = instant_in_words(expires_at, facts.now)
    if expires_at > facts.now:
        left = duration_in_words(expires_at - facts.now)
        return passed(f"it expires in {left}, at {when}, unless it has begun by then")
    return stopped(f"it expired at {when}, and will be recorded as skipped", "to run it, trigger its job")


def check_overlap(facts: ExplainFacts) -> GateResult:
    """Whether it may run beside an earlier execution of its job."""
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return not_asked("only a scheduled occurrence can overlap")
    if not facts.competitors:
        return passed("no earlier execution of the job is unfinished")
    competitors = listed([competitor.words(facts.now) for competitor in facts.competitors])
    links = competitor_ids(facts.competitors)
    match job.overlap:
        case Overlap.SKIP:
            return _overlap_skips(facts, competitors, links)
        case Overlap.QUEUE:
            return _overlap_waits(facts, job.overlap, "one after the other", competitors, links)
        case Overlap.CANCEL_RUNNING:
            return _overlap_waits(facts, job.overlap, "which was asked to stop", competitors, links)
        case Overlap.LATEST:
            return _overlap_waits(facts, job.overlap, "a newer occurrence replaces it", competitors, links)
        case Overlap.ALLOW:
            return passed("overlap is allowed")
        case _:
            assert_never(job.overlap)


def _overlap_waits(
    facts: ExplainFacts, policy: Overlap, how: str, competitors: str, links: tuple[str, ...]
) -> GateResult:
    if facts.state_table is not ExecutionTable.BLOCKED:
        return passed(f"an earlier execution is unfinished, {competitors}; overlap is `{policy}`")
    return stopped(
        f"it waits for {competitors} ({how}: overlap is `{policy}`)", None, links, _cancel_command(facts.competitors)
    )


def _overlap_skips(facts: ExplainFacts, competitors: str, links: tuple[str, ...]) -> GateResult:
    if facts.state_table is not ExecutionTable.DUE or facts.due_kind in (
        DueKind.RETRY,
        DueKind.SNOOZE,
        DueKind.PUT_BACK,
    ):
        return passed("it passed this gate earlier")
    if facts.is_coming:
        return passed(f"{competitors} is unfinished; if it still is when the time comes, this one is skipped")
    return stopped(
        f"{competitors} is unfinished, and overlap is `skip`: this one will be skipped",
        "set overlap to queue or allow to run both",
        links,
    )


def check_unique_key(facts: ExplainFacts) -> GateResult:
    """Whether its unique key is free."""
    execution = facts.execution
    key = facts.job.unique_key if execution is None and facts.job else execution and execution.unique_key
    if not key:
        return passed("it has no unique key")
    if facts.key_holder is None or (execution is not None and facts.key_holder == execution.id):
        return passed(f"no other execution holds its key «{key}»")
    holder = format_execution_id(facts.key_holder)
    if facts.state_table not in (None, ExecutionTable.DUE):
        return passed(f"its key «{key}» is held by {holder}, which it does not need any more")
    is_enqueued = execution is not None and execution.origin is Origin.ENQUEUE
    outcome = "this one runs when it has ended" if is_enqueued else "unless that ends first, this one will be skipped"
    return stopped(
        f"{holder} holds the key «{key}»; {outcome}", links=(holder,), command=f"timeball runs cancel {holder}"
    )


def check_run_time(facts: ExplainFacts) -> GateResult:
    """Whether its time has come."""
    execution = facts.execution
    if execution is None or execution.run_at is None:
        return not_asked("there is no execution that waits for its time")
    if facts.is_parked:
        return stopped("it waits for its job to be resumed", command=_resume_command(facts))
    if not facts.is_coming:
        return passed(f"its time came {duration_in_words(facts.now - execution.run_at)} ago")
    when = f"{instant_in_words(execution.run_at, facts.now)}, in {duration_in_words(execution.run_at - facts.now)}"
    if facts.state_table is ExecutionTable.RUNNING:
        worker = facts.holder.name if facts.holder else "a worker"
        return stopped(f"{worker} holds it for its instant: {when}")
    match facts.due_kind:
        case DueKind.RETRY:
            tries = "" if facts.job is None else f" of {facts.job.retry.max_retries + 1}"
            return stopped(
                f"attempt {execution.attempts}{tries} failed; the next one is at {when}",
                "see what went wrong",
                command=f"timeball runs show {format_execution_id(execution.id)}",
            )
        case DueKind.PUT_BACK:
            return stopped(f"it was queued when a freeze began, and goes back to the queue at {when}")
        case DueKind.SNOOZE if facts.freeze is None or execution.run_at != facts.freeze.until_at:
            return stopped(f"its handler asked to be run again at {when}")
        case _ if facts.freeze is not None:
            # What is triggered waits for the end of the freeze, too.
            return stopped(f"it is due at {when}")
        case _:
            return stopped(
                f"it is due at {when}",
                "to run it now" if _trigger_advice(facts) else None,
                command=_trigger_advice(facts),
            )


def check_scheduler(facts: ExplainFacts) -> GateResult:
    """Whether a scheduler promotes it when its time comes."""
    job = facts.job
    if facts.execution is not None and facts.state_table is not ExecutionTable.DUE:
        return not_asked("no scheduler is needed any more")
    if not facts.schedulers:
        sentence = "no scheduler is alive: nothing is promoted when its time comes"
        return stopped(sentence, "start one", command="timeball scheduler")
    owner = None if job is None else next((node for node in facts.schedulers if job.shard in node.shards), None)
    alive = f"{counted(len(facts.schedulers), 'scheduler is', 'schedulers are')} alive"
    if job is not None and owner is None:
        return stopped(
            f"shard {job.shard} has no scheduler at the moment; {alive}",
            "a scheduler takes it within seconds; if not, look further",
            command="timeball doctor",
        )
    late = timedelta(0) if facts.run_at is None or facts.is_parked else facts.now - facts.run_at
    owned = f"{owner.name} owns its shard" if owner else alive
    if late > _PROMOTION_TIME:
        sentence = f"{owned}, but it has not been promoted for {duration_in_words(late)}"
        return stopped(sentence, command="timeball doctor")
    if facts.clock_error > WORST_CLOCK:
        return stopped(
            f"the database's clock is known only to within {duration_in_words(facts.clock_error)}",
            command="timeball doctor",
        )
    return passed(f"{owned}; the database's clock decides")


def _cancel_command(competitors: Sequence[Competitor]) -> str | None:
    return f"timeball runs cancel {format_execution_id(competitors[0].id)}" if competitors else None


def _resume_command(facts: ExplainFacts) -> str | None:
    return None if facts.job is None else f"timeball jobs resume {quote(facts.job.name or format_job_id(facts.job.id))}"


def _trigger_advice(facts: ExplainFacts) -> str | None:
    job = facts.job
    return None if job is None or job.name is None else trigger_command(job.name)


def check_queue_open(facts: ExplainFacts) -> GateResult:
    """Whether the queue is not paused."""
    queue = facts.queue
    if queue.paused_at is None:
        return passed(f"queue «{queue.name}» is open")
    until = "" if queue.paused_until is None else f" until {instant_in_words(queue.paused_until, facts.now)}"
    because = f": {queue.pause_reason}" if queue.pause_reason else ""
    return stopped(
        f"queue «{queue.name}» has been paused since {instant_in_words(queue.paused_at, facts.now)}{until}{because}",
        command=f"timeball queues resume {quote(queue.name)}",
    )


def check_worker_for_queue(facts: ExplainFacts) -> GateResult:
    """Whether a worker serves the queue."""
    serving = facts.serving
    name = facts.queue.name
    if serving:
        return passed(f"{counted(len(serving), 'worker serves', 'workers serve')} «{name}»")
    if not facts.workers:
        sentence = "no worker is alive"
    elif all(worker.draining for worker in facts.workers):
        sentence = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, but draining"
    else:
        sentence = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, none serves queue «{name}»"
    return stopped(sentence, "start one", command=f"timeball worker app:tb --queue {quote(name)}")


def check_worker_for_handler(facts: ExplainFacts) -> GateResult:
    """Whether a worker of the queue knows the handler."""
    if not facts.serving:
        return not_asked("no worker serves the queue")
    if facts.able and not facts.fitting:
        return _other_version(facts)
    if facts.able:
        sentence = f"{counted(len(facts.able), 'worker knows', 'workers know')} {facts.handler}"
        refusing = len(facts.able) - len(facts.fitting)
        if refusing:
            sentence += f", {refusing} of them in a version that does not take this payload"
        return passed(sentence)
    elsewhere = [worker.name for worker in facts.workers if facts.handler in worker.handlers]
    but = f"; {listed(elsewhere)} knows it, but serves other queues" if elsewhere else ""
    count, queue = len(facts.serving), f"queue «{facts.queue.name}»"
    who = f"the only worker of {queue} does not know" if count == 1 else f"none of the {count} workers of {queue} knows"
    return stopped(
        f"{who} the handler {facts.handler}{but}",
        f"start a worker with the program that has it, or correct the name: {facts.handler}",
    )


def _other_version(facts: ExplainFacts) -> GateResult:
    """The workers know the handler, but in no version that takes the payload."""
    have = listed([f"{worker.name} has {short_fingerprint(_version_of(facts, worker))}" for worker in facts.able])
    fitting = next((version for version in facts.versions if version.takes_payload), None)
    if fitting is None:
        return stopped(
            f"no published version of {facts.handler} takes this payload ({have}): the newest ends it dead",
            "start a worker whose version takes it, or cancel it and enqueue it with another payload",
        )
    elsewhere = [worker.name for worker in facts.workers if fitting.fingerprint in worker.fingerprints]
    who = f"{listed(elsewhere)} has it, but serves other queues" if elsewhere else "no live worker has it"
    return stopped(
        f"this payload needs version {short_fingerprint(fitting.fingerprint)} of {facts.handler}: {who}; {have}",
        "start a worker with that version",
        command=f"timeball handlers show {quote(facts.handler)}",
    )


def _version_of(facts: ExplainFacts, worker: NodeStatus) -> str:
    versions = (version.fingerprint for version in facts.versions if version.fingerprint in worker.fingerprints)
    return next(versions, "an unknown one")


def check_slots(facts: ExplainFacts) -> GateResult:
    """Whether its limits, its queue and its workers have a free slot."""
    execution = facts.execution
    if execution is None or facts.is_coming or facts.state_table is ExecutionTable.DUE:
        return not_asked("it is checked when its time has come")
    limited = _limited(facts) if facts.state_table is ExecutionTable.BLOCKED else None
    if limited is not None:
        return limited
    queue = facts.queue
    if queue.max_running is not None and queue.taken >= queue.max_running:
        return stopped(
            f"queue «{queue.name}» allows {queue.max_running} at once and "
            f"{_all_taken(queue.max_running)}: {_holders(queue.holders, facts)}",
            links=competitor_ids(queue.holders),
            command=f"timeball queues limit {quote(queue.name)} {queue.max_running + 1}",
        )
    if not facts.able:
        return not_asked("no worker can take it")
    return _worker_slots(facts)


def _limited(facts: ExplainFacts) -> GateResult | None:
    limit = facts.limit
    if limit is None or limit.max_running is None or limit.taken < limit.max_running:
        return None
    if facts.job is not None and _is_serial(facts, limit):
        return not_asked("it waits because of its overlap policy")
    what = "the job" if limit.key.startswith("job:") else f"the key «{limit.key}»"
    name = format_job_id(facts.job.id) if facts.job else ""
    return stopped(
        f"{what} allows {limit.max_running} at once and {_all_taken(limit.max_running)}: {_holders(limit.holders, facts)}",
        links=competitor_ids(limit.holders),
        command=f"timeball jobs edit {name} --set max_running={limit.max_running + 1}" if name else None,
    )


def _is_serial(facts: ExplainFacts, limit: LimitFacts) -> bool:
    job = facts.job
    assert job is not None
    return limit.key == f"job:{job.id}" and job.overlap.is_serial and bool(facts.competitors)


def _worker_slots(facts: ExplainFacts) -> GateResult:
    free = sum(max(worker.slots - worker.busy, 0) for worker in facts.able)
    slots = sum(worker.slots for worker in facts.able)
    if free:
        return passed(f"{free} of {counted(slots, 'slot')} are free on {_names(facts.able)}")
    return stopped(
        f"{_all_slots(slots)} of {_names(facts.able)} {'is' if slots == 1 else 'are'} taken: {_holders(facts.on_workers, facts)}",
        "start another worker",
        competitor_ids(facts.on_workers),
        f"timeball worker app:tb --queue {quote(facts.queue.name)}",
    )


def check_rate(_facts: ExplainFacts) -> GateResult:
    """Always open: queues have no rate limit."""
    return not_asked("no limit: queues have no rate limit")


def check_place_in_line(facts: ExplainFacts) -> GateResult:
    """How many executions are ahead of it."""
    if facts.execution is None or facts.state_table is not ExecutionTable.READY or facts.is_coming:
        return not_asked("it is not in line")
    if facts.ahead >= facts.most_ahead:
        return passed(f"more than {facts.most_ahead} are ahead of it in «{facts.queue.name}»")
    return passed(f"it is {ordinal(facts.ahead + 1)} in line of «{facts.queue.name}»")


def _holders(competitors: Sequence[Competitor], facts: ExplainFacts) -> str:
    return (
        listed([competitor.words(facts.now) for competitor in competitors])
        or "by executions that have just ended or started"
    )


def _all_taken(number: int) -> str:
    return {1: "its one place is taken", 2: "both places are taken"}.get(number, f"all {number} places are taken")


def _all_slots(number: int) -> str:
    return {1: "the one slot", 2: "both slots"}.get(number, f"all {number} slots")


def _names(workers: Sequence[NodeStatus]) -> str:
    return listed([worker.name for worker in workers])
