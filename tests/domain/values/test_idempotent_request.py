"""An idempotent request: the same ids each time, and others for another."""

from __future__ import annotations

from datetime import timedelta

from timeball.domain.values.ids import IdempotentRequest, id_created_at, new_id

SEED, NEXT = new_id(1_800_000_000_123, 5), new_id(1_800_000_000_123, 6)


def test_repeated_requests_get_the_same_ids_in_order() -> None:
    ids = list(IdempotentRequest(SEED).ids(1000))

    assert ids == list(IdempotentRequest(SEED, is_repeated=True).ids(1000)) == sorted(set(ids))
    assert {(id_.version, id_created_at(id_)) for id_ in ids} == {(7, id_created_at(SEED))}
    assert list(IdempotentRequest(SEED).ids(10)) == ids[:10]


def test_another_request_has_other_ids() -> None:
    assert not {SEED, *IdempotentRequest(SEED).ids(1000)} & {NEXT, *IdempotentRequest(NEXT).ids(1000)}


def test_a_request_knows_when_it_was_first_made() -> None:
    assert IdempotentRequest(SEED).requested_at - id_created_at(new_id(1_800_000_000_000, 0)) == timedelta(
        milliseconds=123
    )
