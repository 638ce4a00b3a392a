"""Limits for each caller: requests and bytes per second, concurrent requests, expensive requests, failed keys.

Each caller has token buckets. Every process keeps its own: two API processes let twice as much through, and no request
waits for another machine to count it.
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

# The callers with the oldest last request are forgotten first; their buckets would be full by now.
_MAX_CALLERS = 10_000
# Expensive requests mostly run Python code, one at a time in a process: more of them together would only be slower.
_MAX_HEAVY = 2
_MAX_WAITING = 8
_LINES_PER_MINUTE = 60
_QUIET_SECONDS = 60.0


@dataclass(slots=True)
class TokenBucket:
    """Holds up to *size* tokens, and gains *rate* of them per second."""

    size: float
    rate: float
    level: float
    filled_at: float

    def wait_for(self, amount: float, now: float) -> float:
        """Take the amount, or return in how many seconds it can be taken. An amount above *size* takes the whole bucket."""
        self.level = min(self.size, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now
        tokens = min(amount, self.size)
        if self.level >= tokens:
            self.level -= tokens
            return 0.0
        return (tokens - self.level) / self.rate


@dataclass(slots=True)
class _CallerBuckets:
    requests: TokenBucket
    body_bytes: TokenBucket
    concurrent: int = 0


class RateLimiter:
    """Limits requests per second, bytes per second and concurrent requests of each caller."""

    def __init__(self, settings: ApiSettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._callers: OrderedDict[str, _CallerBuckets] = OrderedDict()

    def begin(self, name: str) -> None:
        """Count a request that begins; HttpProblem (429) says when to try again."""
        caller, now = self._caller(name), self._monotonic()
        limit = self._settings.concurrent_requests
        if caller.concurrent >= limit:
            raise _too_many(f"this caller has {limit} requests in progress, expected at most that many", 1)
        wait = caller.requests.wait_for(1, now)
        if wait:
            rate = self._settings.requests_per_second
            raise _too_many(f"this caller sends more than {rate:g} requests per second", wait)
        caller.concurrent += 1

    def count_bytes(self, name: str, number: int) -> None:
        """Count a body that was read; HttpProblem (429) says when to send it again."""
        wait = self._caller(name).body_bytes.wait_for(number, self._monotonic())
        if wait:
            rate = self._settings.megabytes_per_second
            raise _too_many(f"this caller sends more than {rate:g} MB per second", wait)

    def end(self, name: str) -> None:
        """Count a request that has ended."""
        self._caller(name).concurrent -= 1

    def _caller(self, name: str) -> _CallerBuckets:
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = self._new_caller()
            self._forget_oldest()
        self._callers.move_to_end(name)
        return caller

    def _new_caller(self) -> _CallerBuckets:
        settings, now = self._settings, self._monotonic()
        burst, megabytes = settings.request_burst, settings.megabyte_burst * 1024.0**2
        return _CallerBuckets(
            TokenBucket(burst, settings.requests_per_second, burst, now),
            TokenBucket(megabytes, settings.megabytes_per_second * 1024.0**2, megabytes, now),
        )

    def _forget_oldest(self) -> None:
        while len(self._callers) > _MAX_CALLERS:
            oldest = next(iter(self._callers))
            if self._callers[oldest].concurrent:
                self._callers.move_to_end(oldest)
                return
            del self._callers[oldest]


class HeavyRequestLimiter:
    """Runs one expensive request of a caller at a time, and a few in all; the others wait, or are refused."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_HEAVY)
        self._waiting: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait until the caller may run one; HttpProblem (429) if too many of its requests wait."""
        if self._waiting[name] >= _MAX_WAITING:
            raise _too_many(
                f"this caller has {_MAX_WAITING} expensive requests in progress, expected at most that many", 1
            )
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._waiting[name] += 1
        try:
            async with lock, self._slots:
                yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]


class RefusedKeyLog(Protocol):
    """Records refused keys in the audit."""

    async def note_refused(self, place: str, count: int) -> None: ...


class FailedKeyLimiter:
    """Requests and logins without a valid key: limited by address, counted and reported.

    The log and the audit get one line per minute for each address, with the number of tries since the last line, and sixty per
    minute in all: an attacker must not fill them. The metric counts every try.
    """

    def __init__(self, limits: RateLimiter, notes: RefusedKeyLog, emit: Emit, monotonic: Callable[[], float]) -> None:
        self.limits = limits
        self._notes = notes
        self._emit = emit
        self._monotonic = monotonic
        self._lines = TokenBucket(_LINES_PER_MINUTE, _LINES_PER_MINUTE / 60, _LINES_PER_MINUTE, monotonic())
        # When an address was last reported, and how often it has tried since.
        self._tries: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def limit(self, address: str) -> None:
        """Count a try; HttpProblem (429) if there were too many from this address."""
        self.limits.begin(address)
        self.limits.end(address)

    async def refused(self, address: str, place: str) -> None:
        """Report that a request or a login had no valid key."""
        count = self._count_to_report(address)
        self._emit(KeyRefused(place, count))
        if count:
            with suppress(StoreError):
                await self._notes.note_refused(place, count)

    def _count_to_report(self, address: str) -> int:
        """The number of tries that a line reports; 0 if no line is due."""
        now = self._monotonic()
        reported_at, before = self._tries.pop(address, (-_QUIET_SECONDS, 0))
        count = before + 1
        is_due = now - reported_at >= _QUIET_SECONDS and not self._lines.wait_for(1, now)
        self._tries[address] = (now, 0) if is_due else (reported_at, count)
        if len(self._tries) > _MAX_CALLERS:
            self._tries.popitem(last=False)
        return count if is_due else 0


def _too_many(detail: str, wait: float) -> HttpProblem:
    seconds = max(math.ceil(wait), 1)
    return HttpProblem(
        429,
        "too_many_requests",
        detail,
        hint=f"try again in {seconds} s; an administrator can raise the limit with TIMEBALL_API__...",
        headers={"Retry-After": str(seconds)},
    )
