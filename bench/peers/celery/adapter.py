"""How jobs come into Celery."""

from collections.abc import Sequence
from datetime import UTC, datetime

from driver import Adapter, serve
from tasks import noop, slow


class CeleryAdapter(Adapter):
    async def enqueue(self, number: int) -> None:
        noop.delay(number)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            noop.apply_async((number,), eta=datetime.fromtimestamp(instant, UTC))

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            slow.delay(number, seconds)


serve(CeleryAdapter())
