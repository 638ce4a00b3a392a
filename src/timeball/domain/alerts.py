"""Alerts: facts that a person should act upon, and the life of each from the first time it is seen until it is gone.

An evaluation finds the facts of one moment. Each has a key that is the same however often it is seen. `reconcile` compares them with the
alerts that are stored and says what becomes of each. A new fact becomes an alert: at once, or once it has *lasted*, because a node that
restarts needs no person; until then it is `pending`. A fact that is gone resolves its alert.

Many facts of one kind are one alert with *members*: 251 queues without a worker have one cause. A fact that has an alert of its own keeps
that, and one that is in a group stays in it, so no alert opens only because others come or go.

An acknowledgement says that a person knows of an alert. It lasts until the instant that was named with it, or until there is news: the
alert is more severe, or a group has more members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NewType
from uuid import UUID

from timeball.domain.values.ids import JobId, format_id
from timeball.domain.values.wording import listed

AlertId = NewType("AlertId", UUID)

# Executions of this queue and handler deliver alerts. Nothing that becomes of them is a fact: an alert about an alert would never end.
DELIVERY_QUEUE: Final = "timeball.alerts"
DELIVERY_HANDLER: Final = "alert.deliver"

# So many facts of a kind have an alert of their own; of more, the new ones share one.
MOST_ALONE: Final = 5
# A group of more keeps only these: a page and a message show no more, and routes look at no more.
MOST_MEMBERS: Final = 500
_NAMED = 5


class Severity(StrEnum):
    """How much an alert matters: `critical` if work waits or is lost, `warning` if a person should look."""

    CRITICAL = "critical"
    WARNING = "warning"

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)


class AlertState(StrEnum):
    """Where an alert is in its life."""

    PENDING = "pending"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class AlertEvent(StrEnum):
    """What has happened to an alert."""

    OPENED = "opened"
    SEVERITY_CHANGED = "severity_changed"
    GREW = "grew"
    ACKNOWLEDGED = "acknowledged"
    # By a person, because its time is over, or because the alert is worse than it was.
    UNACKNOWLEDGED = "unacknowledged"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMember:
    """What a fact is about: a job, a queue, a node. *tags* are those of the job."""

    name: str
    job_id: JobId | None = None
    queue: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFact:
    """Something that a person should act upon: a sentence, advice, a target as (kind, id), an explanation and a command.

    *key* identifies the fact. *count* is the number of members, of which some may be left out. The fact opens an alert once it has been
    seen for *lasting*.
    """

    kind: str
    key: str
    severity: Severity
    sentence: str
    advice: str | None = None
    command: str | None = None
    target: tuple[str, str] | None = None
    why: str | None = None
    members: tuple[AlertMember, ...] = ()
    count: int = 1
    # Of what is over and needs no more than a look: another one as soon as there is more of it.
    mark: str | None = field(default=None, compare=False)
    # The words for several facts of this kind, such as "{} queues have no worker"; None if they are never grouped.
    plural: str | None = field(default=None, compare=False)
    lasting: timedelta = field(default=timedelta(0), compare=False)

    @property
    def is_group(self) -> bool:
        return self.key == group_key(self.kind)

    @property
    def job_ids(self) -> frozenset[JobId]:
        """The jobs that it is about."""
        return frozenset(member.job_id for member in self.members if member.job_id is not None)

    @property
    def queues(self) -> frozenset[str]:
        """The queues that it is about, those of its jobs included."""
        return frozenset(member.queue for member in self.members if member.queue is not None)

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the jobs that it is about."""
        return frozenset(tag for member in self.members for tag in member.tags)


@dataclass(frozen=True, slots=True)
class AlertEvaluation:
    """The facts of one moment, by the database's clock. Facts of an earlier moment than the last one change nothing."""

    at: datetime
    facts: Sequence[AlertFact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Who knows of an alert, and until when that is enough; None: until the alert is resolved."""

    at: datetime
    by: str
    until: datetime | None = None
    reason: str | None = None

    def holds(self, now: datetime) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fact with its life. *opened_at* is None while it is pending; *last_seen_at* is the latest evaluation that found the fact."""

    id: AlertId
    fact: AlertFact
    first_seen_at: datetime
    last_seen_at: datetime
    opened_at: datetime | None = None
    resolved_at: datetime | None = None
    acknowledgement: Acknowledgement | None = None

    @property
    def state(self) -> AlertState:
        if self.resolved_at is not None:
            return AlertState.RESOLVED
        if self.opened_at is None:
            return AlertState.PENDING
        return AlertState.OPEN if self.acknowledgement is None else AlertState.ACKNOWLEDGED


def format_alert_id(alert_id: UUID) -> str:
    """An alert as people and the API name it."""
    return format_id("alr", alert_id)


@dataclass(frozen=True, slots=True)
class AlertTransition:
    """What has happened to an alert that was open, or is now. *before* is the alert before it; None if it has just opened."""

    event: AlertEvent
    alert: Alert
    before: Alert | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What becomes of the stored alerts: those to write, the pending ones to forget, and what has happened."""

    written: Sequence[Alert]
    forgotten: Sequence[AlertId]
    transitions: Sequence[AlertTransition]


def reconcile(stored: Sequence[Alert], evaluation: AlertEvaluation, new_id: Callable[[], UUID]) -> Reconciliation:
    """What becomes of all alerts that are not resolved, given the facts of now. Doing it twice changes nothing more."""
    now = evaluation.at
    facts = {fact.key: fact for fact in group_facts(evaluation.facts, (alert.fact.key for alert in stored))}
    written: list[Alert] = []
    forgotten: list[AlertId] = []
    transitions: list[AlertTransition] = []
    for alert in stored:
        fact = facts.pop(alert.fact.key, None)
        if fact is not None:
            after, events = _seen_again(alert, fact, now)
        elif alert.opened_at is None:
            forgotten.append(alert.id)
            continue
        else:
            after, events = replace(alert, resolved_at=now), [AlertEvent.RESOLVED]
        if replace(after, last_seen_at=alert.last_seen_at) != alert:
            written.append(after)
        transitions += _transitions(events, after, alert)
    for fact in facts.values():
        alert = Alert(id=AlertId(new_id()), fact=fact, first_seen_at=now, last_seen_at=now)
        after, events = _seen_again(alert, fact, now)
        written.append(after)
        transitions += _transitions(events, after, None)
    return Reconciliation(written, forgotten, transitions)


def _transitions(events: Iterable[AlertEvent], after: Alert, before: Alert | None) -> list[AlertTransition]:
    return [AlertTransition(event, after, None if event is AlertEvent.OPENED else before) for event in events]


def _seen_again(alert: Alert, fact: AlertFact, now: datetime) -> tuple[Alert, list[AlertEvent]]:
    after = replace(alert, fact=fact, last_seen_at=now)
    if alert.opened_at is None:
        if now - alert.first_seen_at < fact.lasting:
            return after, []
        return replace(after, opened_at=now), [AlertEvent.OPENED]
    events: list[AlertEvent] = []
    is_news = fact.severity.rank < alert.fact.severity.rank or _has_grown(alert.fact, fact)
    acknowledgement = alert.acknowledgement
    if acknowledgement is not None and (is_news or not acknowledgement.holds(now)):
        after = replace(after, acknowledgement=None)
        events.append(AlertEvent.UNACKNOWLEDGED)
    if fact.severity is not alert.fact.severity:
        events.append(AlertEvent.SEVERITY_CHANGED)
    if _has_grown(alert.fact, fact):
        events.append(AlertEvent.GREW)
    return after, events


def _has_grown(before: AlertFact, after: AlertFact) -> bool:
    """Whether a group has a member that it had not; if members are left out, whether it has more of them."""
    if not after.is_group:
        return False
    if before.count > len(before.members) or after.count > len(after.members):
        return after.count > before.count
    return not set(_identities(after)) <= set(_identities(before))


def _identities(fact: AlertFact) -> Iterable[object]:
    return (member.job_id or member.name for member in fact.members)


def acknowledge(alert: Alert, acknowledgement: Acknowledgement | None) -> AlertTransition:
    """Acknowledge an open alert, or take that back with None."""
    event = AlertEvent.UNACKNOWLEDGED if acknowledgement is None else AlertEvent.ACKNOWLEDGED
    return AlertTransition(event, replace(alert, acknowledgement=acknowledgement), alert)


# Groups.


def group_key(kind: str) -> str:
    """The key of the alert that many facts of a kind share."""
    return f"{kind}:*"


def group_facts(facts: Iterable[AlertFact], stored_keys: Iterable[str]) -> list[AlertFact]:
    """The facts with those of a kind grouped that are many, the most severe first.

    A fact whose key is stored keeps an alert of its own. If a group of its kind is stored, all others are in that.
    """
    keys = set(stored_keys)
    kinds: dict[str, list[AlertFact]] = {}
    for fact in facts:
        kinds.setdefault(fact.kind, []).append(fact)
    grouped: list[AlertFact] = []
    for kind, every in kinds.items():
        others = [fact for fact in every if fact.key not in keys and fact.plural is not None]
        if others and (group_key(kind) in keys or len(every) > MOST_ALONE):
            grouped += [fact for fact in every if fact not in others]
            grouped.append(_group(kind, others))
        else:
            grouped += every
    return sorted(grouped, key=lambda fact: fact.severity.rank)


def _group(kind: str, facts: Sequence[AlertFact]) -> AlertFact:
    first = min(facts, key=lambda fact: fact.severity.rank)
    members = tuple(member for fact in facts for member in fact.members)
    is_one = len(facts) == 1
    return replace(
        first,
        key=group_key(kind),
        sentence=first.sentence if is_one else _plural_sentence(first.plural or kind, members, len(facts)),
        target=first.target if is_one else None,
        command=first.command if is_one else None,
        why=first.why if is_one else None,
        members=members[:MOST_MEMBERS],
        count=len(facts),
        mark=_mark_of(facts),
    )


def _mark_of(facts: Sequence[AlertFact]) -> str | None:
    marks = [fact.mark for fact in facts if fact.mark is not None]
    return blake2b(" ".join(sorted(marks)).encode(), digest_size=8).hexdigest() if len(marks) == len(facts) else None


def _plural_sentence(plural: str, members: Sequence[AlertMember], count: int) -> str:
    return f"{plural.format(f'{count:,}')}: {listed([member.name for member in members], _NAMED)}"


# Choosing some of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFilter:
    """Selects alerts; what is not given selects all."""

    states: frozenset[AlertState] = frozenset({AlertState.OPEN, AlertState.ACKNOWLEDGED})
    severity: Severity | None = None
    kind: str | None = None
    job_id: JobId | None = None
    queue: str | None = None
    tag: str | None = None

    def matches(self, alert: Alert) -> bool:
        """Whether an alert passes the filter."""
        fact = alert.fact
        return (
            alert.state in self.states
            and self.severity in (None, fact.severity)
            and self.kind in (None, fact.kind)
            and (self.job_id is None or self.job_id in fact.job_ids)
            and (self.queue is None or self.queue in fact.queues)
            and (self.tag is None or self.tag in fact.tags)
        )
