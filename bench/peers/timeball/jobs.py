"""The program Timeball runs."""

import asyncio

from marks import STARTED, mark, schedules

from timeball import Timeball, current

tb = Timeball()


@tb.handler
async def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


@tb.handler
async def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    await asyncio.sleep(seconds)
    mark(number)


@tb.handler
async def tick(number: int) -> None:
    """Mark which occurrence this is."""
    mark(number, current.scheduled_for.timestamp())


for _number in schedules():
    tb.cron("* * * * * *", name=f"tick-{_number}", arguments={"number": _number})(tick)
