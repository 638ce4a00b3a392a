"""How jobs come into Procrastinate."""

from collections.abc import Sequence
from datetime import UTC, datetime

from driver import Adapter, serve
from tasks import app, noop, slow

_BATCH = 1_000


class ProcrastinateAdapter(Adapter):
    async def prepare(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def enqueue(self, number: int) -> None:
        await noop.defer_async(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _BATCH):
            await noop.batch_defer_async(*({"number": number} for number in numbers[start : start + _BATCH]))

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            await noop.configure(schedule_at=datetime.fromtimestamp(instant, UTC)).defer_async(number=number)

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            await slow.defer_async(number=number, seconds=seconds)

    async def close(self) -> None:
        await app.close_async()


serve(ProcrastinateAdapter())
