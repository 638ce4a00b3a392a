"""Writes whose reply was lost: they were committed, or they were not.

Each has a key that was chosen before it was sent. So it is looked up, and made again if it is not there; the COMMIT itself is
never sent again. A server may still be at the commit when it is looked up: then the key refuses the second one, and the next
look finds the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from timeball.clock import Clock
from timeball.errors import StoreUnavailable

Result = TypeVar("Result")

# For about a second and a half in all.
_TRIES = 3


async def write_again(
    clock: Clock, find: Callable[[], Awaitable[Result | None]], write: Callable[[], Awaitable[Result]]
) -> Result:
    """Write what may have been written: looked up before it is made again, for as long as there is hope."""
    for attempt in range(_TRIES):
        await clock.sleep(0.2 * 2**attempt)
        try:
            return await _found_or_written(find, write)
        except StoreUnavailable:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def _found_or_written(
    find: Callable[[], Awaitable[Result | None]], write: Callable[[], Awaitable[Result]]
) -> Result:
    found = await find()
    if found is not None:
        return found
    try:
        return await write()
    except StoreUnavailable:
        raise
    except Exception:
        # It may have been refused for what the first one did, which was committed only meanwhile.
        found = await find()
        if found is None:
            raise
        return found
