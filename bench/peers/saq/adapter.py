"""How jobs come into SAQ."""

from collections.abc import Sequence

from driver import Adapter, serve
from tasks import queue


class SaqAdapter(Adapter):
    async def prepare(self) -> None:
        await queue.connect()

    async def enqueue(self, number: int) -> None:
        await queue.enqueue("noop", number=number)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            await queue.enqueue("noop", number=number, scheduled=instant)

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            await queue.enqueue("slow", number=number, seconds=seconds, retries=5, timeout=10, heartbeat=2)

    async def close(self) -> None:
        await queue.disconnect()


serve(SaqAdapter())
