"""What becomes of alerts, given the facts of a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.alerts import (
    MOST_ALONE,
    MOST_MEMBERS,
    Acknowledgement,
    Alert,
    AlertEvaluation,
    AlertEvent,
    AlertFact,
    AlertFilter,
    AlertMember,
    AlertState,
    Reconciliation,
    Severity,
    group_facts,
    reconcile,
)
from timeball.domain.values.ids import JobId

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)


def make_fact(name: str = "mail", **fields: object) -> AlertFact:
    values: dict[str, object] = {
        "kind": "queue_unserved",
        "key": f"queue_unserved:{name}",
        "severity": Severity.CRITICAL,
        "sentence": f"queue {name}: 3 waiting, no worker serves it",
        "plural": "{} queues have no worker",
        "members": (AlertMember(name=name, queue=name),),
    }
    return AlertFact(**values | fields)  # type: ignore[arg-type]


def at(minutes: float, *facts: AlertFact) -> AlertEvaluation:
    return AlertEvaluation(NOON + timedelta(minutes=minutes), facts)


def after(stored: Sequence[Alert], changes: Reconciliation) -> list[Alert]:
    """The alerts that are not resolved once a reconciliation is written."""
    alerts = {alert.id: alert for alert in (*stored, *changes.written)}
    return [
        alert
        for alert in alerts.values()
        if alert.id not in changes.forgotten and alert.state is not AlertState.RESOLVED
    ]


def run(*evaluations: AlertEvaluation) -> tuple[list[Alert], list[tuple[AlertEvent, str]]]:
    """What is left of the alerts after some evaluations, and what has happened in them."""
    stored: list[Alert] = []
    happened: list[tuple[AlertEvent, str]] = []
    for evaluation in evaluations:
        changes = reconcile(stored, evaluation, uuid4)
        happened += [(transition.event, transition.alert.fact.key) for transition in changes.transitions]
        stored = after(stored, changes)
    return stored, happened


def test_a_new_fact_opens_an_alert() -> None:
    stored, happened = run(at(0, make_fact()))

    assert [(alert.state, alert.opened_at) for alert in stored] == [(AlertState.OPEN, NOON)]
    assert happened == [(AlertEvent.OPENED, "queue_unserved:mail")]


def test_a_fact_that_is_seen_again_has_the_same_alert() -> None:
    stored, happened = run(at(0, make_fact()), at(1, make_fact()), at(2, make_fact()))

    assert len(stored) == 1
    assert [event for event, _ in happened] == [AlertEvent.OPENED]


def test_an_alert_that_nothing_has_changed_is_not_written() -> None:
    stored, _ = run(at(0, make_fact()))

    assert reconcile(stored, at(1, make_fact()), uuid4).written == []


def test_a_changed_sentence_is_written_and_is_no_news() -> None:
    stored, _ = run(at(0, make_fact()))

    changes = reconcile(stored, at(1, make_fact(sentence="queue mail: 4 waiting")), uuid4)

    assert [alert.fact.sentence for alert in changes.written] == ["queue mail: 4 waiting"]
    assert changes.transitions == []


def test_a_fact_that_is_gone_resolves_its_alert() -> None:
    stored, happened = run(at(0, make_fact()), at(5))

    assert stored == []
    assert [event for event, _ in happened] == [AlertEvent.OPENED, AlertEvent.RESOLVED]


def test_a_resolved_alert_keeps_when_its_fact_was_last_seen() -> None:
    stored, _ = run(at(0, make_fact()))
    stored = [replace(stored[0], last_seen_at=NOON + timedelta(minutes=4))]

    resolved = reconcile(stored, at(5), uuid4).written[0]

    assert resolved.last_seen_at == NOON + timedelta(minutes=4)
    assert resolved.resolved_at == NOON + timedelta(minutes=5)


def test_a_fact_that_comes_back_opens_another_alert() -> None:
    stored, happened = run(at(0, make_fact()), at(1), at(2, make_fact()))

    assert [alert.first_seen_at for alert in stored] == [NOON + timedelta(minutes=2)]
    assert [event for event, _ in happened] == [AlertEvent.OPENED, AlertEvent.RESOLVED, AlertEvent.OPENED]


def test_a_fact_opens_its_alert_once_it_has_lasted() -> None:
    fact = make_fact(lasting=timedelta(seconds=30))

    stored, happened = run(at(0, fact), at(0.4, fact))
    assert [alert.state for alert in stored] == [AlertState.PENDING]
    assert happened == []

    stored, happened = run(at(0, fact), at(0.4, fact), at(0.5, fact))
    assert [(alert.first_seen_at, alert.opened_at) for alert in stored] == [(NOON, NOON + timedelta(seconds=30))]
    assert [event for event, _ in happened] == [AlertEvent.OPENED]


def test_a_pending_alert_whose_fact_is_gone_is_forgotten() -> None:
    fact = make_fact(lasting=timedelta(seconds=30))
    stored, _ = run(at(0, fact))

    changes = reconcile(stored, at(0.2), uuid4)

    assert changes.forgotten == [stored[0].id]
    assert (changes.written, changes.transitions) == ([], [])


def test_a_severity_that_changes_is_told() -> None:
    _, happened = run(at(0, make_fact(severity=Severity.WARNING)), at(1, make_fact()))

    assert [event for event, _ in happened] == [AlertEvent.OPENED, AlertEvent.SEVERITY_CHANGED]


def acknowledged(until: datetime | None = None, **fields: object) -> list[Alert]:
    stored, _ = run(at(0, make_fact(**fields)))
    return [replace(stored[0], acknowledgement=Acknowledgement(at=NOON, by="ada", until=until))]


def test_an_acknowledgement_lasts_until_its_instant() -> None:
    stored = acknowledged(NOON + timedelta(hours=1))

    assert reconcile(stored, at(59, make_fact()), uuid4).written == []
    changes = reconcile(stored, at(60, make_fact()), uuid4)

    assert [transition.event for transition in changes.transitions] == [AlertEvent.UNACKNOWLEDGED]
    assert [alert.state for alert in changes.written] == [AlertState.OPEN]


def test_an_acknowledgement_without_an_end_lasts_until_the_alert_is_resolved() -> None:
    stored = acknowledged()

    assert reconcile(stored, at(60 * 24 * 365, make_fact()), uuid4).written == []
    resolved = reconcile(stored, at(60 * 24 * 365 + 1), uuid4).written[0]

    assert resolved.state is AlertState.RESOLVED
    assert resolved.acknowledgement is not None


def test_an_acknowledgement_ends_when_its_alert_gets_worse() -> None:
    stored = acknowledged(severity=Severity.WARNING)

    changes = reconcile(stored, at(1, make_fact()), uuid4)

    assert [transition.event for transition in changes.transitions] == [
        AlertEvent.UNACKNOWLEDGED,
        AlertEvent.SEVERITY_CHANGED,
    ]


def test_an_acknowledgement_stays_when_its_alert_gets_better() -> None:
    stored = acknowledged()

    changes = reconcile(stored, at(1, make_fact(severity=Severity.WARNING)), uuid4)

    assert [alert.state for alert in changes.written] == [AlertState.ACKNOWLEDGED]


def many(number: int, first: int = 0) -> list[AlertFact]:
    return [make_fact(f"q{index:03}") for index in range(first, first + number)]


def test_many_facts_of_a_kind_are_one_alert() -> None:
    stored, happened = run(at(0, *many(251)))

    assert happened == [(AlertEvent.OPENED, "queue_unserved:*")]
    assert stored[0].fact.sentence == "251 queues have no worker: q000, q001, q002, q003, q004 and 246 more"
    assert stored[0].fact.count == 251
    assert "q250" in stored[0].fact.queues


def test_few_facts_of_a_kind_have_an_alert_each() -> None:
    stored, _ = run(at(0, *many(MOST_ALONE)))

    assert len(stored) == MOST_ALONE


def test_facts_that_are_never_grouped_stay_alone() -> None:
    facts = [replace(fact, plural=None) for fact in many(20)]

    assert len(group_facts(facts, ())) == 20


def test_facts_with_an_alert_keep_it_when_many_others_come() -> None:
    stored, happened = run(at(0, *many(2)), at(1, *many(20)))

    assert sorted(alert.fact.key for alert in stored) == [
        "queue_unserved:*",
        "queue_unserved:q000",
        "queue_unserved:q001",
    ]
    assert {alert.fact.key: alert.fact.count for alert in stored}["queue_unserved:*"] == 18
    assert [event for event, _ in happened] == [AlertEvent.OPENED] * 3


def test_a_group_stays_one_alert_until_its_last_member_is_gone() -> None:
    stored, happened = run(at(0, *many(20)), at(1, *many(2)), at(2, *many(1)))

    assert [(alert.fact.key, alert.fact.count) for alert in stored] == [("queue_unserved:*", 1)]
    assert stored[0].fact.sentence == "queue q000: 3 waiting, no worker serves it"
    assert [event for event, _ in happened] == [AlertEvent.OPENED]

    stored, happened = run(at(0, *many(20)), at(1, *many(2)), at(2))
    assert stored == []
    assert [event for event, _ in happened] == [AlertEvent.OPENED, AlertEvent.RESOLVED]


def test_a_member_that_joins_a_group_is_told_and_one_that_leaves_is_not() -> None:
    _, happened = run(at(0, *many(20)), at(1, *many(19)), at(2, *many(19, first=1)))

    assert [event for event, _ in happened] == [AlertEvent.OPENED, AlertEvent.GREW]


def test_a_member_that_joins_a_group_ends_its_acknowledgement() -> None:
    stored, _ = run(at(0, *many(20)))
    stored = [replace(stored[0], acknowledgement=Acknowledgement(at=NOON, by="ada"))]

    assert reconcile(stored, at(1, *many(19)), uuid4).written[0].state is AlertState.ACKNOWLEDGED
    assert reconcile(stored, at(1, *many(21)), uuid4).written[0].state is AlertState.OPEN


def test_a_large_group_keeps_some_of_its_members_and_the_number_of_all() -> None:
    fact = group_facts(many(MOST_MEMBERS + 7), ())[0]

    assert (len(fact.members), fact.count) == (MOST_MEMBERS, MOST_MEMBERS + 7)


def test_a_group_is_as_severe_as_its_worst_member() -> None:
    facts = many(20)
    facts[:10] = [replace(fact, severity=Severity.WARNING) for fact in facts[:10]]

    assert group_facts(facts, ())[0].severity is Severity.CRITICAL


def test_the_most_severe_facts_come_first() -> None:
    minor = make_fact("a", kind="late", key="late:a", severity=Severity.WARNING)

    assert group_facts([minor, make_fact()], ()) == [make_fact(), minor]


facts_of_rounds = st.lists(st.sets(st.integers(0, 11), max_size=12), min_size=1, max_size=8)


@given(facts_of_rounds)
def test_each_fact_is_in_one_alert_whatever_comes_and_goes(rounds: list[set[int]]) -> None:
    stored: list[Alert] = []
    for minute, numbers in enumerate(rounds):
        evaluation = at(minute, *(make_fact(f"q{number}") for number in sorted(numbers)))
        stored = after(stored, reconcile(stored, evaluation, uuid4))

        named = [member.name for alert in stored for member in alert.fact.members]
        assert sorted(named) == sorted(f"q{number}" for number in numbers)
        assert len({alert.fact.key for alert in stored}) == len(stored) <= MOST_ALONE + 1
        assert reconcile(stored, evaluation, uuid4).transitions == []


def test_a_filter_looks_at_what_an_alert_is_about() -> None:
    job_id = JobId(UUID(int=7))
    member = AlertMember(name="nightly", job_id=job_id, queue="mail", tags=("billing",))
    alert = run(at(0, make_fact(members=(member,))))[0][0]

    for accepting in (
        AlertFilter(),
        AlertFilter(kind="queue_unserved", severity=Severity.CRITICAL),
        AlertFilter(job_id=job_id, queue="mail", tag="billing"),
    ):
        assert accepting.matches(alert), accepting
    for refusing in (
        AlertFilter(states=frozenset({AlertState.RESOLVED})),
        AlertFilter(kind="late"),
        AlertFilter(severity=Severity.WARNING),
        AlertFilter(job_id=JobId(UUID(int=8))),
        AlertFilter(queue="slow"),
        AlertFilter(tag="web"),
    ):
        assert not refusing.matches(alert), refusing
