"""How tests are handed out to the processes that run them side by side (`make test`, or pytest with `-n`).

Some tests share something costly: a browser, a Prometheus, a million rows. They are a family: one process runs them all and
makes it once; families come first. Every other test goes to whichever process is free.

Many slow tests hardly need a processor: they wait until a lease has run out or a process has started. Side by side with each
other they would leave the machine idle, so they are spread evenly among the rest; and none comes last, to be waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

FAMILIES = {
    "a browser": re.compile(r"_in_chromium\.py::"),
    "a RabbitMQ": re.compile(r"rabbitmq", re.IGNORECASE),
    "a million rows": re.compile(r"/test_plans\.py::"),
    "a full database": re.compile(r"/test_read_plans\.py::"),
    "a Prometheus": re.compile(r"/deploy/test_prometheus\.py::"),
    "a history to break": re.compile(r"/test_verify\.py::"),
    "a small world": re.compile(r"/cli/test_examples\.py::"),
}


def family_of(nodeid: str) -> str | None:
    """The family of a test, if it has one."""
    return next((family for family, members in FAMILIES.items() if members.search(nodeid)), None)


class HandingOut(LoadScopeScheduling):
    """Families in one piece and first, the largest before the others; then test by test, in the given order."""

    def _split_scope(self, nodeid: str) -> str:
        return family_of(nodeid) or nodeid

    def schedule(self) -> None:
        """Hand out once more: a process begins a test when it knows the next one, and one that replaces a crashed one has but one."""
        super().schedule()
        super().schedule()

    def remove_node(self, node: WorkerController) -> str | None:
        """Give back only what a crashed process has not done: a process that is handed nothing but what is done waits for ever."""
        self.assigned_work[node] = {
            scope: unit for scope, unit in self.assigned_work[node].items() if not all(unit.values())
        }
        return super().remove_node(node)


def spread(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The slow tests evenly among the first nine tenths of the others, each kind in its own order."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    step = len(others) * 9 // 10 // max(len(slow), 1) or 1
    waiting = iter(slow)
    for number, item in enumerate(others):
        if number % step == 0:
            yield from islice(waiting, 1)
        yield item
    yield from waiting
