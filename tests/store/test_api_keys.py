"""API keys in the store: their last use, and their revocation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.factories import OPERATOR
from timeball.store.access import ApiKey, ApiKeyStore
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


@pytest.fixture
def keys(store: Store) -> ApiKeyStore:
    return ApiKeyStore(store.database)


async def make_key(keys: ApiKeyStore, name: str) -> tuple[ApiKey, str]:
    return await keys.create("viewer", name, None, OPERATOR)


async def used(keys: ApiKeyStore) -> dict[str, object]:
    return {key.name: key.used_at for key in await keys.list()}


async def test_the_use_of_a_key_is_stored_once_a_minute(keys: ApiKeyStore, clock: VirtualClock) -> None:
    (_, token), _ = await make_key(keys, "used"), await make_key(keys, "idle")
    first = clock.now()

    await keys.recognise(token)
    assert await used(keys) == {"used": first, "idle": None}

    clock.advance("59s")
    await keys.recognise(token)
    assert await used(keys) == {"used": first, "idle": None}

    clock.advance("2s")
    await keys.recognise(token)
    assert await used(keys) == {"used": first + timedelta(seconds=61), "idle": None}


async def test_revoking_a_key_again_keeps_the_first_time(keys: ApiKeyStore, clock: VirtualClock) -> None:
    key, token = await make_key(keys, "gone")
    revoked_at = clock.now()
    await keys.revoke(key.id, OPERATOR)
    clock.advance("1m")

    again = await keys.revoke(key.id, OPERATOR)

    assert again.revoked_at == revoked_at
    assert await keys.recognise(token) is None


async def test_revoked_and_expired_keys_still_count_as_created(keys: ApiKeyStore, clock: VirtualClock) -> None:
    assert (await keys.any_made(), await keys.any_usable()) == (False, False)
    _, token = await keys.create("viewer", "for an hour", timedelta(hours=1), OPERATOR)
    assert (await keys.any_made(), await keys.any_usable()) == (True, True)
    assert await keys.recognise(token) is not None

    clock.advance("1h")
    assert (await keys.any_made(), await keys.any_usable()) == (True, False), "it has expired"
    assert await keys.recognise(token) is None, "to the second"

    key, _ = await make_key(keys, "revoked")
    assert await keys.any_usable()
    await keys.revoke(key.id, OPERATOR)
    assert (await keys.any_made(), await keys.any_usable()) == (True, False)


async def test_a_revoked_key_alone_still_counts_as_created(keys: ApiKeyStore) -> None:
    key, _ = await make_key(keys, "only one")

    await keys.revoke(key.id, OPERATOR)

    assert (await keys.any_made(), await keys.any_usable()) == (True, False)


async def test_keys_are_listed_in_the_order_of_creation(keys: ApiKeyStore, clock: VirtualClock) -> None:
    names = ["c", "a", "d", "b"]
    for name in names:
        await make_key(keys, name)
        clock.advance("1s")

    assert [key.name for key in await keys.list()] == names
