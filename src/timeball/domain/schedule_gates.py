"""The gates of the schedule: whether the job is enabled, owes this occurrence, may run it beside others, and whether its time has come.

What the engine decides is asked of the engine's own functions: `owed_by` and `does_overlap` (occurrences).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from shlex import quote

from timeball.domain.execution import Origin
from timeball.domain.facts import Facts, Rival, Room
from timeball.domain.findings import Finding, ids_of, not_asked, passed, stopped, trigger_job
from timeball.domain.ids import show_execution, show_job
from timeball.domain.misfire import Overlap
from timeball.domain.occurrences import DueKind, does_overlap, owed_by
from timeball.domain.schedule import Manual
from timeball.domain.wording import counted, listed, moment_words, span_words

# A scheduler that is alive moves what is due within a moment; only past this is it late itself.
_MOMENT = timedelta(seconds=2)
# Nodes keep to the database's time; one that cannot tell it better than this would start things late.
WORST_CLOCK = timedelta(milliseconds=100)


def enabled(facts: Facts) -> Finding:
    """Whether the job runs at all."""
    job = facts.job
    if job is None:
        return passed("an enqueued execution needs no job that is enabled")
    name = job.name or show_job(job.id)
    if job.deleted_at is not None and facts.execution is None:
        return stopped(f"the job was deleted at {moment_words(job.deleted_at, facts.now)}", "create it again")
    if job.paused_at is None:
        return passed("the job is active")
    until = "" if job.paused_until is None else f" until {moment_words(job.paused_until, facts.now)}"
    because = f": {job.pause_reason}" if job.pause_reason else ""
    words = f"the job has been paused since {moment_words(job.paused_at, facts.now)}{until}{because}"
    if facts.execution is None or facts.is_parked:
        return stopped(words, links=(show_job(job.id),), command=f"timeball jobs resume {quote(name)}")
    return passed(f"{words}; this execution was let through all the same")


def due(facts: Facts) -> Finding:
    """Whether the schedule named this, or has anything left to name."""
    execution, job = facts.execution, facts.job
    if execution is not None:
        return passed(
            f"it is an execution by {execution.origin}, for {moment_words(execution.scheduled_for, facts.now)}"
        )
    if job is None or job.paused_at is not None:
        return not_asked("a paused job has no next occurrence")
    name = job.name or show_job(job.id)
    if isinstance(job.rule, Manual):
        return stopped("the job has no schedule: it runs only when it is triggered", command=trigger_job(name))
    if job.rule.ends_at is not None and job.rule.ends_at < facts.now:
        return stopped(
            f"its schedule ended at {moment_words(job.rule.ends_at, facts.now)}",
            "take its end away",
            command=f"timeball jobs edit {quote(name)} --set ends_at=null",
        )
    return stopped(
        f"its schedule has nothing left: {job.rule.describe()}",
        "give it another schedule, or run it once more",
        command=trigger_job(name),
    )


def late_policy(facts: Facts) -> Finding:
    """Whether the misfire policy still wants it."""
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return not_asked("only what a schedule named can be too late")
    if (
        facts.room is not Room.DUE
        or facts.due_kind not in (DueKind.OCCURRENCE, DueKind.LATER)
        or execution.run_at is None
    ):
        return passed("it was judged to be in time")
    owed = owed_by(job, facts.due_kind, execution.run_at, execution.scheduled_for, facts.now)
    late = facts.now - execution.run_at
    grace = span_words(job.misfire.grace)
    if late <= job.misfire.grace:
        return passed(f"it is not late (grace {grace})")
    words = f"it is {span_words(late)} late, past its grace of {grace}; the policy `{job.misfire.policy}`"
    if execution.scheduled_for in owed.run:
        return passed(f"{words} runs it all the same")
    return stopped(
        f"{words} will record it as skipped",
        "to run what was missed, set misfire to latest or all, or backfill it",
        (show_job(job.id),),
    )


def overlap(facts: Facts) -> Finding:
    """Whether it may run beside an earlier execution of its job."""
    execution, job = facts.execution, facts.job
    if execution is None or job is None or execution.origin is not Origin.SCHEDULE:
        return not_asked("only what a schedule named can overlap")
    if not does_overlap(job, is_busy=bool(facts.rivals)):
        return passed("overlap is allowed" if facts.rivals else "no earlier execution of the job is unfinished")
    rivals = listed([rival.words(facts.now) for rival in facts.rivals])
    links = ids_of(facts.rivals)
    if job.overlap is Overlap.SKIP:
        return _overlap_skips(facts, rivals, links)
    if facts.room is Room.BLOCKED:
        does = "which was asked to stop" if job.overlap is Overlap.CANCEL_RUNNING else "one after the other"
        return stopped(
            f"it waits for {rivals} ({does}: overlap is `{job.overlap}`)", None, links, _cancel(facts.rivals)
        )
    return passed(f"an earlier execution is unfinished, {rivals}; overlap is `{job.overlap}`")


def _overlap_skips(facts: Facts, rivals: str, links: tuple[str, ...]) -> Finding:
    if facts.room is not Room.DUE or facts.due_kind in (DueKind.RETRY, DueKind.SNOOZE):
        return passed("it was let through before the others")
    if facts.is_coming:
        return passed(f"{rivals} is unfinished; if it still is when the time comes, this one is skipped")
    return stopped(
        f"{rivals} is unfinished, and overlap is `skip`: this one will be skipped",
        "set overlap to queue or allow to run both",
        links,
    )


def unique_key(facts: Facts) -> Finding:
    """Whether its unique key is free."""
    execution = facts.execution
    key = facts.job.unique_key if execution is None and facts.job else execution and execution.unique_key
    if not key:
        return passed("it has no unique key")
    if facts.key_holder is None or (execution is not None and facts.key_holder == execution.id):
        return passed(f"nobody else holds its key «{key}»")
    holder = show_execution(facts.key_holder)
    if facts.room not in (None, Room.DUE):
        return passed(f"its key «{key}» is held by {holder}, which it does not need any more")
    return stopped(
        f"{holder} holds the key «{key}»; unless that ends first, this one will be skipped",
        links=(holder,),
        command=f"timeball runs cancel {holder}",
    )


def run_time(facts: Facts) -> Finding:
    """Whether its time has come."""
    execution = facts.execution
    if execution is None or execution.run_at is None:
        return not_asked("there is no execution that waits for its time")
    if facts.is_parked:
        return stopped("it waits for its job to be resumed", command=_resume(facts))
    if not facts.is_coming:
        return passed(f"its time came {span_words(facts.now - execution.run_at)} ago")
    when = f"{moment_words(execution.run_at, facts.now)}, in {span_words(execution.run_at - facts.now)}"
    if facts.room is Room.RUNNING:
        worker = facts.holder.name if facts.holder else "a worker"
        return stopped(f"{worker} holds it for its instant: {when}")
    match facts.due_kind:
        case DueKind.RETRY:
            tries = "" if facts.job is None else f" of {facts.job.retry.max_retries + 1}"
            return stopped(
                f"attempt {execution.attempts}{tries} failed; the next one is at {when}",
                "see what went wrong",
                command=f"timeball runs show {show_execution(execution.id)}",
            )
        case DueKind.SNOOZE:
            return stopped(f"its handler asked to be run again at {when}")
        case _:
            return stopped(
                f"it is due at {when}", "to run it now" if _trigger(facts) else None, command=_trigger(facts)
            )


def scheduler(facts: Facts) -> Finding:
    """Whether somebody moves it when its time comes."""
    job = facts.job
    if facts.execution is not None and facts.room is not Room.DUE:
        return not_asked("no scheduler is needed any more")
    if not facts.schedulers:
        found = "no scheduler is alive: nothing is moved when its time comes"
        return stopped(found, "start one", command="timeball scheduler")
    owner = None if job is None else next((one for one in facts.schedulers if job.shard in one.shards), None)
    if job is not None and owner is None:
        return stopped(
            f"shard {job.shard} has no scheduler just now; {counted(len(facts.schedulers), 'scheduler is', 'schedulers are')} alive",
            "it is taken within seconds; if not, look further",
            command="timeball doctor",
        )
    late = timedelta(0) if facts.run_at is None or facts.is_parked else facts.now - facts.run_at
    who = owner.name if owner else f"{counted(len(facts.schedulers), 'scheduler is', 'schedulers are')} alive"
    if late > _MOMENT:
        return stopped(f"{who} has it, but has not moved it for {span_words(late)}", command="timeball doctor")
    if facts.clock_error > WORST_CLOCK:
        return stopped(
            f"the database's clock is known only to {span_words(facts.clock_error)}", command="timeball doctor"
        )
    return passed(f"{who} looks after it; the database's clock decides")


def _cancel(rivals: Sequence[Rival]) -> str | None:
    return f"timeball runs cancel {show_execution(rivals[0].id)}" if rivals else None


def _resume(facts: Facts) -> str | None:
    return None if facts.job is None else f"timeball jobs resume {quote(facts.job.name or show_job(facts.job.id))}"


def _trigger(facts: Facts) -> str | None:
    job = facts.job
    return None if job is None or job.name is None else trigger_job(job.name)
