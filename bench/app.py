"""The program the benchmarks run."""

from timeball import Timeball

tb = Timeball()


@tb.handler(name="bench.noop")
async def noop() -> None:
    """Do nothing."""
