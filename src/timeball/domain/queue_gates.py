"""The gates of the queue: whether it is open, who could take an execution from it, whether there is a place, and who comes first.

What a statement decides (a paused queue, a full limit, the order of a lane) is judged by facts that are read with its conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from timeball.domain.contract import short
from timeball.domain.facts import Facts, LimitFacts, Rival, Room
from timeball.domain.findings import Finding, ids_of, not_asked, passed, stopped
from timeball.domain.ids import show_job
from timeball.domain.misfire import Overlap
from timeball.domain.node import NodeStatus
from timeball.domain.wording import counted, listed, moment_words, ordinal


def queue_open(facts: Facts) -> Finding:
    """Whether the queue gives anything."""
    queue = facts.queue
    if queue.paused_at is None:
        return passed(f"queue «{queue.name}» is open")
    because = f": {queue.pause_reason}" if queue.pause_reason else ""
    return stopped(
        f"queue «{queue.name}» has been paused since {moment_words(queue.paused_at, facts.now)}{because}",
        command=f"timeball queues resume {quote(queue.name)}",
    )


def worker_for_queue(facts: Facts) -> Finding:
    """Whether a worker takes from the queue."""
    serving = facts.serving
    name = facts.queue.name
    if serving:
        return passed(f"{counted(len(serving), 'worker serves', 'workers serve')} «{name}»")
    if not facts.workers:
        found = "no worker is alive"
    elif all(worker.draining for worker in facts.workers):
        found = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, and leaving"
    else:
        found = f"{counted(len(facts.workers), 'worker is', 'workers are')} alive, none serves queue «{name}»"
    return stopped(found, "start one", command=f"timeball worker app:tb --queue {quote(name)}")


def worker_for_handler(facts: Facts) -> Finding:
    """Whether one of them knows the handler."""
    if not facts.serving:
        return not_asked("no worker serves the queue")
    if facts.able and not facts.fitting:
        return _other_version(facts)
    if facts.able:
        known = f"{counted(len(facts.able), 'worker knows', 'workers know')} {facts.handler}"
        others = len(facts.able) - len(facts.fitting)
        return passed(
            known if not others else f"{known}, {others} of them in a version that does not take this payload"
        )
    elsewhere = [worker.name for worker in facts.workers if facts.handler in worker.handlers]
    but = f"; {listed(elsewhere)} knows it, but serves other queues" if elsewhere else ""
    return stopped(
        f"none of the {counted(len(facts.serving), 'worker')} of «{facts.queue.name}» knows the handler {facts.handler}{but}",
        f"start a worker with the program that has it, or mend the name: {facts.handler}",
    )


def _other_version(facts: Facts) -> Finding:
    """Its workers know the handler, but not in a version that takes the payload."""
    have = listed([f"{worker.name} has {short(_own(facts, worker))}" for worker in facts.able])
    wanted = next((version for version in facts.versions if version.takes_payload), None)
    if wanted is None:
        return stopped(
            f"no published version of {facts.handler} takes this payload ({have}): the newest ends it dead",
            "start a worker whose version takes it, or cancel it and enqueue it with another payload",
        )
    elsewhere = [worker.name for worker in facts.workers if wanted.fingerprint in worker.fingerprints]
    who = f"{listed(elsewhere)} has it, but serves other queues" if elsewhere else "no living worker has it"
    return stopped(
        f"this payload wants version {short(wanted.fingerprint)} of {facts.handler}: {who}; {have}",
        "start a worker with that version",
        command=f"timeball handlers show {quote(facts.handler)}",
    )


def _own(facts: Facts, worker: NodeStatus) -> str:
    own = (version.fingerprint for version in facts.versions if version.fingerprint in worker.fingerprints)
    return next(own, "an unknown one")


def slots(facts: Facts) -> Finding:
    """Whether its limits, its queue and its workers have a place for it."""
    execution = facts.execution
    if execution is None or facts.is_coming or facts.room is Room.DUE:
        return not_asked("it is asked when its time has come")
    limited = _limited(facts) if facts.room is Room.BLOCKED else None
    if limited is not None:
        return limited
    queue = facts.queue
    if queue.max_running is not None and queue.taken >= queue.max_running:
        return stopped(
            f"queue «{queue.name}» allows {queue.max_running} at once and "
            f"{_all_taken(queue.max_running)}: {_holders(queue.holders, facts)}",
            links=ids_of(queue.holders),
            command=f"timeball queues limit {quote(queue.name)} {queue.max_running + 1}",
        )
    if not facts.able:
        return not_asked("no worker could take it")
    return _worker_slots(facts)


def _limited(facts: Facts) -> Finding | None:
    limit = facts.limit
    if limit is None or limit.max_running is None or limit.taken < limit.max_running:
        return None
    if facts.job is not None and _is_serial(facts, limit):
        return not_asked("its overlap rule is what it waits for")
    what = "the job" if limit.key.startswith("job:") else f"the key «{limit.key}»"
    name = show_job(facts.job.id) if facts.job else ""
    return stopped(
        f"{what} allows {limit.max_running} at once and {_all_taken(limit.max_running)}: {_holders(limit.holders, facts)}",
        links=ids_of(limit.holders),
        command=f"timeball jobs edit {name} --set max_running={limit.max_running + 1}" if name else None,
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
        return passed(f"{free} of {counted(slots, 'slot')} are free on {_names(facts.able)}")
    return stopped(
        f"{_all_slots(slots)} of {_names(facts.able)} {'is' if slots == 1 else 'are'} taken: {_holders(facts.on_workers, facts)}",
        "start another worker",
        ids_of(facts.on_workers),
        f"timeball worker app:tb --queue {quote(facts.queue.name)}",
    )


def rate(_facts: Facts) -> Finding:
    """Whether it comes too fast: never, there is no such limit."""
    return not_asked("no limit: queues have no rate limit")


def place_in_line(facts: Facts) -> Finding:
    """How many are given away before it."""
    if facts.execution is None or facts.room is not Room.READY or facts.is_coming:
        return not_asked("it does not stand in line")
    if facts.ahead >= facts.most_ahead:
        return passed(f"more than {facts.most_ahead} stand before it in «{facts.queue.name}»")
    return passed(f"it is {ordinal(facts.ahead + 1)} in line of «{facts.queue.name}»")


def _holders(rivals: Sequence[Rival], facts: Facts) -> str:
    return listed([rival.words(facts.now) for rival in rivals]) or "by what has just ended or begun"


def _all_taken(number: int) -> str:
    return {1: "its one place is taken", 2: "both places are taken"}.get(number, f"all {number} places are taken")


def _all_slots(number: int) -> str:
    return {1: "the one slot", 2: "both slots"}.get(number, f"all {number} slots")


def _names(workers: Sequence[NodeStatus]) -> str:
    return listed([worker.name for worker in workers])
