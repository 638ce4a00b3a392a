"""What jobs take from contracts, and what becomes of a payload that does not fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from timeball.domain.handler import (
    ContractVersion,
    HandlerContract,
    MismatchAction,
    decide_mismatch,
    has_newer_contract,
    inherit_options,
    keep_at_most_once,
)
from timeball.domain.job_fields import JobSpec

START = datetime(2026, 11, 16, tzinfo=UTC)


def version(fingerprint: str, hour: int, *workers: str, is_newest: bool = False) -> ContractVersion:
    at = START + timedelta(hours=hour)
    return ContractVersion(
        name="h",
        fingerprint=fingerprint,
        options={},
        doc="",
        run_style="thread",
        published_at=at,
        started_at=at,
        is_newest=is_newest,
        workers=workers,
    )


def test_equal_contracts_have_equal_fingerprints_whatever_the_order_of_their_keys() -> None:
    def made(**fields: object) -> str:
        return HandlerContract(
            **{"name": "h", "schema": {"a": 1, "b": 2}, "options": {}, "doc": "", "run_style": "thread"} | fields
        ).fingerprint  # type: ignore[arg-type]

    assert made() == made(schema={"b": 2, "a": 1})
    assert (
        len(
            {
                made(),
                made(name="i"),
                made(schema={}),
                made(options={"queue": "a"}),
                made(doc="d"),
                made(run_style="process"),
            }
        )
        == 6
    )


NEW, OLD = version("new", 2, "w2", is_newest=True), version("old", 1, "w1")
NEW_GONE, OLD_GONE = version("new", 2, is_newest=True), version("old", 1)


@pytest.mark.parametrize(
    ("versions", "own", "takers", "becomes"),
    [
        ([NEW, OLD], "old", {"new"}, MismatchAction.LEAVE_TO_NEWER),
        ([NEW, OLD], "old", set(), MismatchAction.LEAVE_TO_NEWER),
        ([NEW_GONE, OLD], "old", {"new"}, MismatchAction.WAIT),
        ([NEW, OLD_GONE], "new", {"old"}, MismatchAction.DEAD),
        ([NEW, OLD], "new", {"old"}, MismatchAction.WAIT),
        ([NEW, OLD], "new", set(), MismatchAction.DEAD),
        ([], "new", set(), MismatchAction.DEAD),
    ],
)
def test_only_the_newest_contract_makes_dead_and_not_while_another_lives_that_takes_it(
    versions: list[ContractVersion], own: str, takers: set[str], becomes: MismatchAction
) -> None:
    refusal, pause = decide_mismatch(versions, own, takers.__contains__)

    assert refusal is becomes
    assert (pause > timedelta(0)) == (becomes is MismatchAction.WAIT)


def test_a_handler_is_left_only_while_a_living_worker_has_a_newer_contract() -> None:
    assert has_newer_contract([NEW, OLD], "old")
    assert not has_newer_contract([NEW_GONE, OLD], "old")
    assert not has_newer_contract([NEW, OLD], "new")
    assert not has_newer_contract([NEW, OLD], "forgotten")


def test_what_was_told_is_not_inherited() -> None:
    spec = inherit_options(
        JobSpec(handler="h", queue="mine"), {"handler", "queue"}, {"queue": "its", "priority": 9, "tags": ["a"]}
    )

    assert (spec.queue, spec.priority, spec.tags, spec.limit_key) == ("mine", 9, ("a",), None)
    assert inherit_options(JobSpec(handler="h"), {"handler"}, {"max_running": 2}).limit_key == "h"
    assert inherit_options(JobSpec(handler="h", overlap="queue"), {"overlap"}, {"max_running": 2}).max_running is None


def test_an_edit_tightens_delivery_and_loosens_it_only_when_told() -> None:
    at_most_once = {"delivery": "at_most_once"}

    assert keep_at_most_once({"handler": "h"}, at_most_once) == {"handler": "h", "delivery": "at_most_once"}
    assert keep_at_most_once({"delivery": "at_least_once"}, at_most_once) == {"delivery": "at_least_once"}
    assert keep_at_most_once({"handler": "h"}, {}) == {"handler": "h"}
