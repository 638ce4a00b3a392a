"""How jobs come into Timeball: from Python, by the handler's own face."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from driver import Adapter, serve
from jobs import noop, slow, tb

_AT_ONCE = 200


class TimeballAdapter(Adapter):
    async def prepare(self) -> None:
        subprocess.run([sys.executable, "-m", "timeball", "db", "migrate"], check=True, stdout=sys.stderr)
        await tb.__aenter__()

    async def enqueue(self, number: int) -> None:
        await noop.aenqueue(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await noop.aenqueue_many(noop.call(number) for number in numbers)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        wishes = list(zip(numbers, instants, strict=True))
        for start in range(0, len(wishes), _AT_ONCE):
            await asyncio.gather(*(self._enqueue_at(*wish) for wish in wishes[start : start + _AT_ONCE]))

    async def _enqueue_at(self, number: int, instant: float) -> None:
        await noop.options(at=datetime.fromtimestamp(instant, UTC)).aenqueue(number)

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        await slow.aenqueue_many(slow.call(number, seconds) for number in numbers)

    async def close(self) -> None:
        await tb.aclose()


serve(TimeballAdapter())
