"""Why an execution may or may not run: each gate decides and explains itself.

The gates stand in the order in which an execution meets them. Where the engine decides, the gate asks the engine's own
function: `owed_by` and `does_overlap` (occurrences) for what is owed and what overlaps, `serves_queue` (node) for who
takes from a queue. Where a statement decides (a paused queue, a full limit, the order of a lane), the facts are read
with the conditions of that statement.

A gate answers `passed`, `stopped` or `not_asked`, always in one sentence with names and numbers, and says what to do
next where somebody can do something. Its links are the ids of what stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from shlex import quote

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.facts import Facts, LimitFacts, Rival, Room
from timeball.domain.ids import show_execution, show_job
from timeball.domain.misfire import Overlap, SkipReason
from timeball.domain.node import NodeStatus
from timeball.domain.occurrences import DueKind, does_overlap, owed_by
from timeball.domain.schedule import Manual
from timeball.domain.wording import counted, listed, moment_words, ordinal, span_words

# A scheduler that is alive moves what is due within a moment; only past this is it late itself.
_MOMENT = timedelta(seconds=2)
# Nodes keep to the database's time; one that cannot tell it better than this would start things late.
WORST_CLOCK = timedelta(milliseconds=100)


class Verdict(StrEnum):
    """What a gate says."""

    PASSED = "passed"
    STOPPED = "stopped"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one gate: one sentence, what to do next if somebody can do something, and the ids of what is in the way.

    The advice holds the command too, if there is one to type.
    """

    verdict: Verdict
    sentence: str
    advice: str | None = None
    links: tuple[str, ...] = ()
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate and what it found."""

    name: str
    title: str
    finding: Finding

    @property
    def is_stopped(self) -> bool:
        return self.finding.verdict is Verdict.STOPPED


def examine(facts: Facts) -> list[Gate]:
    """Ask every gate, in order."""
    execution = facts.execution
    if execution is not None and execution.state is ExecutionState.SKIPPED:
        return _skipped(execution.reason)
    if execution is not None and (execution.started_at is not None or execution.state.is_final):
        why = "it has started" if execution.started_at is not None else f"it is {execution.state}"
        return [Gate(name, title, _not_asked(why)) for name, title, _ in GATES]
    return [Gate(name, title, ask(facts)) for name, title, ask in GATES]


# the job


def _enabled(facts: Facts) -> Finding:
    job = facts.job
    if job is None:
        return _passed("an enqueued execution needs no job that is enabled")
    name = job.name or show_job(job.id)
    if job.deleted_at is not None and facts.execution is None:
        return _stopped(f"the job was deleted at {moment_words(job.deleted_at, facts.now)}", "create it again")
    if job.paused_at is None:
        return _passed("the job is active")
    until = "" if job.paused_until is None else f" until {moment_words(job.paused_until, facts.now)}"
    because = f": {job.pause_reason}" if job.pause_reason else ""
    words = f"the job has been paused since {moment_words(job.paused_at, facts.now)}{until}{because}"
    if facts.execution is None or facts.is_parked:
        return _stopped(words, links=(show_job(job.id),), command=f"timeball jobs resume {quote(name)}")
    return _passed(f"{words}; this execution was let through all the same")


def _due(facts: Facts) -> Finding:
    execution, job = facts.execution, facts.job
    if execution is not None:
        return _passed(
            f"it is an execution by {execution.origin}, for {moment_words(execution.scheduled_for, facts.now)}"
        )
    if job is None or job.paused_at is not None:
        return _not_asked("a paused job has no next occurrence")
    name = job.name or show_job(job.id)
    if isinstance(job.rule, Manual):
        return _stopped("the job has no schedule: it runs only when it is triggered", command=_trigger_job(name))
    if job.rule.ends_at is not None and job.rule.ends_at < facts.now:
        return _stopped(
            f"its schedule ended at {moment_words(job.rule.ends_at, facts.now)}",
            "give it another end",
            command=f"timeball jobs edit {quote(name)} --ends-at ...",
        )
    return _stopped(
        f"its schedule has nothing left: {job.rule.describe()}",
        "give it another schedule, or run it once more",
        command=_trigger_job(name),
    )


def _late_policy(facts: Facts) -> Finding:
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return _not_asked("only what a schedule named can be too late")
    if (
        facts.room is not Room.DUE
        or facts.due_kind not in (DueKind.OCCURRENCE, DueKind.LATER)
        or execution.run_at is None
    ):
        return _passed("it was judged to be in time")
    owed = owed_by(job, facts.due_kind, execution.run_at, execution.scheduled_for, facts.now)
    late = facts.now - execution.run_at
    grace = span_words(job.misfire.grace)
    if late <= job.misfire.grace:
        return _passed(f"it is not late (grace {grace})")
    words = f"it is {span_words(late)} late, past its grace of {grace}; the policy `{job.misfire.policy}`"
    if execution.scheduled_for in owed.run:
        return _passed(f"{words} runs it all the same")
    return _stopped(
        f"{words} will record it as skipped",
        "to run what was missed, set misfire to latest or all, or backfill it",
        (show_job(job.id),),
    )


def _overlap(facts: Facts) -> Finding:
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return _not_asked("only what a schedule named can overlap")
    if not does_overlap(job, is_busy=bool(facts.rivals)):
        return _passed("overlap is allowed" if facts.rivals else "no earlier execution of the job is unfinished")
    rivals = listed([rival.words(facts.now) for rival in facts.rivals])
    links = _ids(facts.rivals)
    if job.overlap is Overlap.SKIP:
        return _overlap_skips(facts, rivals, links)
    if facts.room is Room.BLOCKED:
        does = "which was asked to stop" if job.overlap is Overlap.CANCEL_RUNNING else "one after the other"
        return _stopped(
            f"it waits for {rivals} ({does}: overlap is `{job.overlap}`)", None, links, _cancel(facts.rivals)
        )
    return _passed(f"an earlier execution is unfinished, {rivals}; overlap is `{job.overlap}`")


def _overlap_skips(facts: Facts, rivals: str, links: tuple[str, ...]) -> Finding:
    if facts.room is not Room.DUE or facts.due_kind in (DueKind.RETRY, DueKind.SNOOZE):
        return _passed("it was let through before the others")
    if facts.is_coming:
        return _passed(f"{rivals} is unfinished; if it still is when the time comes, this one is skipped")
    return _stopped(
        f"{rivals} is unfinished, and overlap is `skip`: this one will be skipped",
        "set overlap to queue or allow to run both",
        links,
    )


def _unique_key(facts: Facts) -> Finding:
    execution = facts.execution
    key = facts.job.unique_key if execution is None and facts.job else execution and execution.unique_key
    if not key:
        return _passed("it has no unique key")
    if facts.key_holder is None or (execution is not None and facts.key_holder == execution.id):
        return _passed(f"nobody else holds its key «{key}»")
    holder = show_execution(facts.key_holder)
    if facts.room not in (None, Room.DUE):
        return _passed(f"its key «{key}» is held by {holder}, which it does not need any more")
    return _stopped(
        f"{holder} holds the key «{key}»; unless that ends first, this one will be skipped",
        links=(holder,),
        command=f"timeball runs cancel {holder}",
    )


# time


def _run_time(facts: Facts) -> Finding:
    execution = facts.execution
    if execution is None or execution.run_at is None:
        return _not_asked("there is no execution that waits for its time")
    if facts.is_parked:
        return _stopped("it waits for its job to be resumed", command=_resume(facts))
    if not facts.is_coming:
        return _passed(f"its time came {span_words(facts.now - execution.run_at)} ago")
    when = f"{moment_words(execution.run_at, facts.now)}, in {span_words(execution.run_at - facts.now)}"
    if facts.room is Room.RUNNING:
        worker = facts.holder.name if facts.holder else "a worker"
        return _stopped(f"{worker} holds it for its instant: {when}")
    match facts.due_kind:
        case DueKind.RETRY:
            tries = "" if facts.job is None else f" of {facts.job.retry.max_retries + 1}"
            return _stopped(
                f"attempt {execution.attempts}{tries} failed; the next one is at {when}",
                "see what went wrong",
                command=f"timeball runs show {show_execution(execution.id)}",
            )
        case DueKind.SNOOZE:
            return _stopped(f"its handler asked to be run again at {when}")
        case _:
            return _stopped(
                f"it is due at {when}", "to run it now" if _trigger(facts) else None, command=_trigger(facts)
            )


# the queue and its workers


def _queue_open(facts: Facts) -> Finding:
    queue = facts.queue
    if queue.paused_at is None:
        return _passed(f"queue «{queue.name}» is open")
    because = f": {queue.pause_reason}" if queue.pause_reason else ""
    return _stopped(
        f"queue «{queue.name}» has been paused since {moment_words(queue.paused_at, facts.now)}{because}",
        command=f"timeball queues resume {quote(queue.name)}",
    )


def _worker_for_queue(facts: Facts) -> Finding:
    serving = facts.serving
    name = facts.queue.name
    if serving:
        return _passed(f"{counted(len(serving), 'worker serves', 'workers serve')} «{name}»")
    if not facts.workers:
        found = "no worker is alive"
    elif all(worker.draining for worker in facts.workers):
        found = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, and leaving"
    else:
        found = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, none serves queue «{name}»"
    return _stopped(found, "start one", command=f"timeball worker app:tb --queue {quote(name)}")


def _worker_for_handler(facts: Facts) -> Finding:
    if not facts.serving:
        return _not_asked("no worker serves the queue")
    if facts.able:
        return _passed(f"{counted(len(facts.able), 'worker knows', 'workers know')} {facts.handler}")
    elsewhere = [worker.name for worker in facts.workers if facts.handler in worker.handlers]
    but = f"; {listed(elsewhere)} knows it, but serves other queues" if elsewhere else ""
    return _stopped(
        f"none of the {counted(len(facts.serving), 'worker')} of «{facts.queue.name}» knows the handler {facts.handler}{but}",
        f"start a worker with the program that has it, or mend the name: {facts.handler}",
    )


def _slots(facts: Facts) -> Finding:
    execution = facts.execution
    if execution is None or facts.is_coming or facts.room is Room.DUE:
        return _not_asked("it is asked when its time has come")
    limited = _limited(facts) if facts.room is Room.BLOCKED else None
    if limited is not None:
        return limited
    queue = facts.queue
    if queue.max_running is not None and queue.taken >= queue.max_running:
        return _stopped(
            f"queue «{queue.name}» allows {queue.max_running} at once and "
            f"{_all_taken(queue.max_running)}: {_holders(queue.holders, facts)}",
            links=_ids(queue.holders),
            command=f"timeball queues limit {quote(queue.name)} {queue.max_running + 1}",
        )
    if not facts.able:
        return _not_asked("no worker could take it")
    return _worker_slots(facts)


def _limited(facts: Facts) -> Finding | None:
    limit = facts.limit
    if limit is None or limit.max_running is None or limit.taken < limit.max_running:
        return None
    if facts.job is not None and _is_serial(facts, limit):
        return _not_asked("its overlap rule is what it waits for")
    what = "the job" if limit.key.startswith("job:") else f"the key «{limit.key}»"
    name = show_job(facts.job.id) if facts.job else ""
    return _stopped(
        f"{what} allows {limit.max_running} at once and {_all_taken(limit.max_running)}: {_holders(limit.holders, facts)}",
        links=_ids(limit.holders),
        command=f"timeball jobs edit {name} --max-running {limit.max_running + 1}" if name else None,
    )


def _is_serial(facts: Facts, limit: LimitFacts) -> bool:
    job = facts.job
    assert job is not None
    return (
        limit.key == f"job:{job.id}" and job.overlap in (Overlap.QUEUE, Overlap.CANCEL_RUNNING) and bool(facts.rivals)
    )


def _worker_slots(facts: Facts) -> Finding:
    free = sum(max(worker.slots - worker.busy, 0) for worker in facts.able)
    slots = sum(worker.slots for worker in facts.able)
    if free:
        return _passed(f"{free} of {counted(slots, 'slot')} are free on {_names(facts.able)}")
    return _stopped(
        f"{_all_slots(slots)} of {_names(facts.able)} {'is' if slots == 1 else 'are'} taken: {_holders(facts.on_workers, facts)}",
        "start another worker",
        _ids(facts.on_workers),
        f"timeball worker app:tb --queue {quote(facts.queue.name)}",
    )


def _rate(_facts: Facts) -> Finding:
    return _not_asked("no limit: queues have no rate limit")


def _place_in_line(facts: Facts) -> Finding:
    if facts.execution is None or facts.room is not Room.READY or facts.is_coming:
        return _not_asked("it does not stand in line")
    if facts.ahead >= facts.most_ahead:
        return _passed(f"more than {facts.most_ahead} stand before it in «{facts.queue.name}»")
    return _passed(f"it is {ordinal(facts.ahead + 1)} in line of «{facts.queue.name}»")


# the schedulers


def _scheduler(facts: Facts) -> Finding:
    job = facts.job
    if facts.execution is not None and facts.room is not Room.DUE:
        return _not_asked("no scheduler is needed any more")
    if not facts.schedulers:
        found = "no scheduler is alive: nothing is moved when its time comes"
        return _stopped(found, "start one", command="timeball scheduler")
    owner = None if job is None else next((one for one in facts.schedulers if job.shard in one.shards), None)
    if job is not None and owner is None:
        return _stopped(
            f"shard {job.shard} has no scheduler just now; {counted(len(facts.schedulers), 'scheduler is', 'schedulers are')} alive",
            "it is taken within seconds; if not, look further",
            command="timeball doctor",
        )
    late = timedelta(0) if facts.run_at is None or facts.is_parked else facts.now - facts.run_at
    who = owner.name if owner else f"{counted(len(facts.schedulers), 'scheduler is', 'schedulers are')} alive"
    if late > _MOMENT:
        return _stopped(f"{who} has it, but has not moved it for {span_words(late)}", command="timeball doctor")
    if facts.clock_error > WORST_CLOCK:
        return _stopped(
            f"the database's clock is known only to {span_words(facts.clock_error)}", command="timeball doctor"
        )
    return _passed(f"{who} looks after it; the database's clock decides")


GATES: tuple[tuple[str, str, Callable[[Facts], Finding]], ...] = (
    ("enabled", "job enabled", _enabled),
    ("due", "was due", _due),
    ("late_policy", "not too late", _late_policy),
    ("overlap", "no overlap", _overlap),
    ("unique_key", "no duplicate key", _unique_key),
    ("run_time", "time reached", _run_time),
    ("queue_open", "queue open", _queue_open),
    ("worker_for_queue", "a worker serves the queue", _worker_for_queue),
    ("worker_for_handler", "a worker knows the handler", _worker_for_handler),
    ("slots", "a slot is free", _slots),
    ("rate", "rate limit", _rate),
    ("place_in_line", "place in line", _place_in_line),
    ("scheduler", "a scheduler is at work", _scheduler),
)

_REASONS: dict[SkipReason, tuple[str, str, str | None]] = {
    SkipReason.MISFIRE: ("late_policy", "it was too late, and the misfire policy does not run it", "backfill it"),
    SkipReason.TOO_OLD: ("late_policy", "it was older than misfire_max_age_seconds", "backfill it"),
    SkipReason.OVER_CAP: ("late_policy", "more were missed than misfire_cap allows to catch up", "backfill it"),
    SkipReason.OVERLAP: (
        "overlap",
        "an earlier execution was unfinished, and overlap is `skip`",
        "set overlap to queue",
    ),
    SkipReason.PAUSED: ("enabled", "the job was paused", None),
    SkipReason.DELETED: ("enabled", "the job was deleted", None),
    SkipReason.UNIQUE_KEY: ("unique_key", "another execution held its unique key", None),
    SkipReason.EDITED: ("due", "the schedule was changed, and no longer names this instant", None),
    SkipReason.CANCELLED: ("due", "this occurrence was cancelled", None),
    SkipReason.ENDED: ("due", "the job had run as often as max_executions allows", None),
    SkipReason.CLOCK_GAP: ("due", "the clock jumped over this time, and on_gap is `skip`", None),
}


def _skipped(reason: str | None) -> list[Gate]:
    """The gates of an occurrence that was not run: those before the one that stopped it were passed."""
    known = _REASONS.get(SkipReason(reason)) if reason in list(SkipReason) else None
    stopping, sentence, advice = known or ("due", reason or "it was skipped", None)
    gates: list[Gate] = []
    for name, title, _ in GATES:
        if name == stopping:
            gates.append(Gate(name, title, _stopped(sentence, advice)))
        elif any(gate.is_stopped for gate in gates):
            gates.append(Gate(name, title, _not_asked("it was skipped before")))
        else:
            gates.append(Gate(name, title, _passed("it was not stopped here")))
    return gates


def _passed(sentence: str) -> Finding:
    return Finding(Verdict.PASSED, sentence)


def _not_asked(sentence: str) -> Finding:
    return Finding(Verdict.NOT_ASKED, sentence)


def _stopped(
    sentence: str, words: str | None = None, links: tuple[str, ...] = (), command: str | None = None
) -> Finding:
    advice = ": ".join(part for part in (words, command) if part) or None
    return Finding(Verdict.STOPPED, sentence, advice, links, command)


def _ids(rivals: Sequence[Rival]) -> tuple[str, ...]:
    return tuple(show_execution(rival.id) for rival in rivals)


def _holders(rivals: Sequence[Rival], facts: Facts) -> str:
    return listed([rival.words(facts.now) for rival in rivals]) or "by what has just ended or begun"


def _all_taken(number: int) -> str:
    return {1: "its one place is taken", 2: "both places are taken"}.get(number, f"all {number} places are taken")


def _all_slots(number: int) -> str:
    return {1: "the one slot", 2: "both slots"}.get(number, f"all {number} slots")


def _names(workers: Sequence[NodeStatus]) -> str:
    return listed([worker.name for worker in workers])


def _cancel(rivals: Sequence[Rival]) -> str | None:
    return f"timeball runs cancel {show_execution(rivals[0].id)}" if rivals else None


def _resume(facts: Facts) -> str | None:
    return None if facts.job is None else f"timeball jobs resume {quote(facts.job.name or show_job(facts.job.id))}"


def _trigger(facts: Facts) -> str | None:
    job = facts.job
    return None if job is None or job.name is None else _trigger_job(job.name)


def _trigger_job(name: str) -> str:
    return f"timeball jobs trigger {quote(name)}"
