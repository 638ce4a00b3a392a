"""A few jobs to look at, made by `timeball up --demo` and by nothing else; all are called demo-..."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeball.domain.job import JobSpec

if TYPE_CHECKING:
    from timeball.commands import Commands

_DEMO = (
    JobSpec(
        name="demo-heartbeat",
        description="A line in its log every five seconds.",
        handler="test.log",
        payload={"message": "still alive"},
        interval_seconds=5,
        tags=("demo",),
    ),
    JobSpec(
        name="demo-report",
        description="By cron, every minute; takes a second and a half.",
        handler="test.delay",
        payload={"duration_ms": 1500},
        schedule="* * * * *",
        queue="reports",
        tags=("demo",),
    ),
    JobSpec(
        name="demo-failing",
        description="Fails every time, is tried once more, and ends among the dead letters.",
        handler="test.delay",
        payload={"duration_ms": 200, "should_fail": True, "fail_message": "the demo fails on purpose"},
        interval_seconds=30,
        max_retries=1,
        tags=("demo",),
    ),
)


async def declare_demo(commands: Commands) -> list[str]:
    """Make the demo's jobs, unless they are there; returns their names."""
    for spec in _DEMO:
        await commands.declare(spec, "timeball up --demo")
    return [str(spec.name) for spec in _DEMO]
