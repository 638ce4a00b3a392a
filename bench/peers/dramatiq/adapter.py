"""How jobs come into Dramatiq."""

import time
from collections.abc import Sequence

from driver import Adapter, serve
from tasks import noop, slow


class DramatiqAdapter(Adapter):
    async def enqueue(self, number: int) -> None:
        noop.send(number)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            noop.send_with_options(args=(number,), delay=max(round((instant - time.time()) * 1000), 0))

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            slow.send(number, seconds)


serve(DramatiqAdapter())
