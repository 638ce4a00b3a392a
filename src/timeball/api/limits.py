"""How much one caller may ask for: requests and bytes by the second, and requests at the same time.

Each caller has buckets that fill steadily and are emptied by what they ask for. They are kept by each process for
itself: two API processes let twice as much through, and no request waits for another machine to count it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from timeball.api.errors import HttpProblem
from timeball.config.settings import ApiSettings
from timeball.errors import StoreError
from timeball.telemetry.events import Emit, KeyRefused

# Callers who have not been heard of for longest are forgotten first; their buckets would be full by now.
_MOST_CALLERS = 10_000
# They are mostly Python, of which a process runs one piece at a time: more together would only be slower.
_HEAVY_AT_ONCE = 2
_MOST_WAITING = 8
_LINES_A_MINUTE = 60
_QUIET_SECONDS = 60.0


@dataclass(slots=True)
class TokenBucket:
    """Holds up to *size*, and fills by *rate* a second."""

    size: float
    rate: float
    level: float
    filled_at: float

    def wait_for(self, amount: float, now: float) -> float:
        """Take the amount out, or say in how many seconds it could be taken. What is larger than the bucket takes all of it."""
        self.level = min(self.size, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now
        wanted = min(amount, self.size)
        if self.level >= wanted:
            self.level -= wanted
            return 0.0
        return (wanted - self.level) / self.rate


@dataclass(slots=True)
class _CallerBuckets:
    requests: TokenBucket
    body_bytes: TokenBucket
    under_way: int = 0


class RateLimiter:
    """The buckets of all callers."""

    def __init__(self, settings: ApiSettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._callers: OrderedDict[str, _CallerBuckets] = OrderedDict()

    def begin(self, name: str) -> None:
        """Count a request that begins; Refusal (429) says when to come again."""
        caller, now = self._caller(name), self._monotonic()
        most = self._settings.concurrent_requests
        if caller.under_way >= most:
            raise _too_many(f"{most} requests of this caller are under way already", 1)
        wait = caller.requests.wait_for(1, now)
        if wait:
            rate = self._settings.requests_per_second
            raise _too_many(f"this caller asks more than {rate:g} times a second", wait)
        caller.under_way += 1

    def count_bytes(self, name: str, number: int) -> None:
        """Count a body that was read; Refusal (429) says when to send it again."""
        wait = self._caller(name).body_bytes.wait_for(number, self._monotonic())
        if wait:
            rate = self._settings.megabytes_per_second
            raise _too_many(f"this caller sends more than {rate:g} MB a second", wait)

    def end(self, name: str) -> None:
        """A request has been answered."""
        self._caller(name).under_way -= 1

    def _caller(self, name: str) -> _CallerBuckets:
        found = self._callers.get(name)
        if found is None:
            found = self._callers[name] = self._new_caller()
            self._forget_some()
        self._callers.move_to_end(name)
        return found

    def _new_caller(self) -> _CallerBuckets:
        settings, now = self._settings, self._monotonic()
        burst, megabytes = settings.request_burst, settings.megabyte_burst * 1024.0**2
        return _CallerBuckets(
            TokenBucket(burst, settings.requests_per_second, burst, now),
            TokenBucket(megabytes, settings.megabytes_per_second * 1024.0**2, megabytes, now),
        )

    def _forget_some(self) -> None:
        while len(self._callers) > _MOST_CALLERS:
            oldest = next(iter(self._callers))
            if self._callers[oldest].under_way:
                self._callers.move_to_end(oldest)
                return
            del self._callers[oldest]


class HeavyRequestLimiter:
    """Requests that are much work take turns: one of a caller at a time, and a few in all; the others wait, or are refused."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_HEAVY_AT_ONCE)
        self._waiting: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """The turn of a caller; Refusal (429) if too many of theirs wait for one."""
        if self._waiting[name] >= _MOST_WAITING:
            raise _too_many(f"{_MOST_WAITING} requests of this caller that are much work are under way already", 1)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._waiting[name] += 1
        try:
            async with lock, self._room:
                yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]


class RefusedKeyLog(Protocol):
    """Where refused keys are written down."""

    async def note_refused(self, place: str, count: int) -> None: ...


class FailedKeyLimiter:
    """Requests and logins that bear no valid key: limited by address, counted, and told.

    The log and the audit get one line a minute for each address, with the number of tries since the last, and sixty a minute in
    all: an attacker must not fill them. The metric counts every try.
    """

    def __init__(self, limits: RateLimiter, notes: RefusedKeyLog, emit: Emit, monotonic: Callable[[], float]) -> None:
        self.limits = limits
        self._notes = notes
        self._emit = emit
        self._monotonic = monotonic
        self._lines = TokenBucket(_LINES_A_MINUTE, _LINES_A_MINUTE / 60, _LINES_A_MINUTE, monotonic())
        # When an address was told last, and how often it has tried since.
        self._tries: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def limit(self, address: str) -> None:
        """Count a try; Refusal (429) if there were too many from this address."""
        self.limits.begin(address)
        self.limits.end(address)

    async def refused(self, address: str, place: str) -> None:
        """Tell that a request or a login bore no valid key."""
        count = self._count_to_tell(address)
        self._emit(KeyRefused(place, count))
        if count:
            with suppress(StoreError):
                await self._notes.note_refused(place, count)

    def _count_to_tell(self, address: str) -> int:
        """How many tries a line would tell of; 0 if none is to be written now."""
        now = self._monotonic()
        told_at, before = self._tries.pop(address, (-_QUIET_SECONDS, 0))
        count = before + 1
        is_due = now - told_at >= _QUIET_SECONDS and not self._lines.wait_for(1, now)
        self._tries[address] = (now, 0) if is_due else (told_at, count)
        if len(self._tries) > _MOST_CALLERS:
            self._tries.popitem(last=False)
        return count if is_due else 0


def _too_many(detail: str, wait: float) -> HttpProblem:
    seconds = max(math.ceil(wait), 1)
    return HttpProblem(
        429,
        "too_many_requests",
        detail,
        hint=f"come again in {seconds} s; an administrator can raise the limit: TIMEBALL_API__...",
        headers={"Retry-After": str(seconds)},
    )
