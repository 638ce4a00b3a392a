"""What leads to the jobs that a filter wants: indexes of the rare ones, and the rooms.

A lead names every job that can fulfil one part of the filter, and perhaps others; whether they do is asked of each. One that
names more than ten thousand is none. Ids are bytes here: most of ten thousand are only counted and sorted, which needs no objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timeball.domain.execution import ExecutionState
from timeball.domain.job import JobStatus
from timeball.domain.query import Term
from timeball.domain.schedule import ScheduleKind
from timeball.domain.search import JobFilter
from timeball.store.composing import Reader, Values
from timeball.store.searching import NamedJobs, id_in, name_condition

LONGEST = 10_000
_ID_BYTES = 16

_RECURRING = "SELECT id FROM timeball.job WHERE kind <> 'once'"
_PAUSED = "SELECT id FROM timeball.job WHERE paused_at IS NOT NULL"
_TAGGED = "SELECT id FROM timeball.job WHERE tags IS NOT NULL"
_NAMED = "SELECT id FROM timeball.job WHERE name IS NOT NULL"
_NAMES = "SELECT id, name FROM timeball.job WHERE name IS NOT NULL ORDER BY id LIMIT {most}"
_ENDED = "SELECT job_id FROM timeball.finished WHERE state = '{state}' AND state <> 'succeeded'"
_IN_STATE = {
    ExecutionState.SCHEDULED: ("SELECT job_id FROM timeball.due",),
    ExecutionState.RETRYING: ("SELECT job_id FROM timeball.due WHERE kind = 'retry'",),
    ExecutionState.QUEUED: ("SELECT job_id FROM timeball.ready", "SELECT job_id FROM timeball.blocked"),
    ExecutionState.RUNNING: ("SELECT job_id FROM timeball.running",),
    ExecutionState.DEAD: (_ENDED.format(state="dead"),),
    ExecutionState.CANCELLED: (_ENDED.format(state="cancelled"),),
    ExecutionState.SKIPPED: (_ENDED.format(state="skipped"),),
}
_ALIVE = (ExecutionState.SCHEDULED, ExecutionState.QUEUED, ExecutionState.RUNNING)
_DUE = """
SELECT due.job_id
FROM timeball.shard
CROSS JOIN LATERAL (
    SELECT job_id
    FROM timeball.due
    WHERE due.shard = shard.id
      AND due.run_at >= coalesce({low}, '-infinity')
      AND due.run_at <= coalesce({high}, 'infinity')
    ORDER BY due.shard, due.run_at
    LIMIT {most}
) AS due"""


class Lead:
    """Texts that name ids, with their values."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.values = Values()


async def jobs_led_to(reader: Reader, wanted: JobFilter) -> list[bytes] | None:
    """The jobs that all short leads name; None if there is no short one."""
    found: set[bytes] | None = None
    for lead in _leads(wanted):
        ids = await _follow(reader, lead)
        if ids is not None:
            found = ids if found is None else found & ids
    return None if found is None else list(found)


async def jobs_named(reader: Reader, terms: Sequence[Term]) -> NamedJobs:
    """Which jobs the terms about names mean, deleted ones too; nothing if there are too many names to look at them all."""
    asked = [term for term in terms if term.field in ("", "job")]
    names = _NAMES.format(most=LONGEST + 1)
    if not asked or await reader.count(names, Values(), LONGEST + 1) > LONGEST:
        return {}
    found = {}
    for term in asked:
        values = Values()
        text = f"SELECT job.id FROM ({names}) AS job WHERE {name_condition(term, values.add)}"
        found[term] = [row["id"] for row in await reader.fetch(text, values)]
    return found


async def _follow(reader: Reader, lead: Lead) -> set[bytes] | None:
    cut = " UNION ALL ".join(f"({text} LIMIT {LONGEST + 1})" for text in lead.texts)
    # All in one value: a row for each takes the server, the network and the driver many times as long.
    rows = await reader.fetch(f"SELECT string_agg(uuid_send(led.id), '') FROM ({cut}) AS led (id)", lead.values)
    ids: bytes = rows[0][0] or b""
    if len(ids) > LONGEST * _ID_BYTES:
        return None
    return {ids[place : place + _ID_BYTES] for place in range(0, len(ids), _ID_BYTES)}


def _leads(wanted: JobFilter) -> Iterator[Lead]:
    statuses = [] if wanted.status is None else [wanted.status]
    if statuses or wanted.states:
        yield from _of_status([*statuses, *wanted.states])
    if wanted.kind is not None and wanted.kind is not ScheduleKind.ONCE:
        yield Lead(_RECURRING)
    if wanted.is_named or wanted.search is not None:
        yield Lead(_NAMED)
    if wanted.tag is not None:
        yield Lead(_TAGGED)
    if wanted.due_from is not None or wanted.due_until is not None:
        yield _due_between(wanted)
    for term in wanted.terms:
        if not term.is_negated:
            yield from _of_term(term)


def _of_term(term: Term) -> Iterator[Lead]:
    match term.field:
        case "status":
            words = [str(value) for value in term.values]
            yield from _of_status(
                [JobStatus(word) if word in list(JobStatus) else ExecutionState(word) for word in words]
            )
        case "kind" if ScheduleKind.ONCE.value not in term.values:
            yield Lead(_RECURRING)
        case "tag":
            yield Lead(_TAGGED)
        case "name":
            yield Lead(_NAMED)
        case "":
            yield _named_or_id(term)


def _named_or_id(term: Term) -> Lead:
    lead = Lead()
    own = f"SELECT id FROM timeball.job WHERE {id_in(term, 'job', lead.values.add)}"
    lead.texts = (_NAMED, own)
    return lead


def _of_status(words: Sequence[JobStatus | ExecutionState]) -> Iterator[Lead]:
    """One lead to all that can stand so; none if most jobs do."""
    texts: list[str] = []
    for word in words:
        match word:
            case JobStatus.PAUSED:
                texts.append(_PAUSED)
            case JobStatus.ACTIVE:
                texts += [f"{_RECURRING} AND kind = 'manual'", *(text for state in _ALIVE for text in _IN_STATE[state])]
            case JobStatus.FINISHED | ExecutionState.SUCCEEDED:
                return
            case _:
                texts += _IN_STATE[word]
    yield Lead(*texts)


def _due_between(wanted: JobFilter) -> Lead:
    lead = Lead()
    low = lead.values.add(wanted.due_from, "timestamptz")
    high = lead.values.add(wanted.due_until, "timestamptz")
    lead.texts = (_DUE.format(low=low, high=high, most=LONGEST + 1),)
    return lead
