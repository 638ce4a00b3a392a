"""How many slots there are, and who shares them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from timeball.domain.ids import Incarnation
from timeball.domain.node import NodeStatus


@dataclass(frozen=True, slots=True)
class Pool:
    """Queues that share the same slots: those of the workers that serve them, or the places of a limited queue."""

    queues: tuple[str, ...]
    slots: int

    @property
    def label(self) -> str:
        return ", ".join(self.queues)


def slots_of(workers: Iterable[NodeStatus], queue: str | None, limits: Mapping[str, int]) -> int:
    """How many executions of a queue, or of all, can run together."""
    serving = [worker for worker in workers if not worker.draining and (queue is None or worker.serves(queue))]
    slots = sum(worker.slots for worker in serving)
    return slots if queue is None else min(slots, limits.get(queue, slots))


def pools(workers: Collection[NodeStatus], queues: Collection[str], limits: Mapping[str, int]) -> list[Pool]:
    """The queues by the workers they share; a limited queue is also a pool of its own."""
    shared: dict[frozenset[Incarnation], list[str]] = {}
    for queue in sorted(queues):
        serving = frozenset(worker.incarnation for worker in workers if worker.serves(queue))
        shared.setdefault(serving, []).append(queue)
    found = [
        Pool(tuple(names), sum(worker.slots for worker in workers if worker.incarnation in serving))
        for serving, names in shared.items()
    ]
    alone = {pool.queues[0]: pool.slots for pool in found if len(pool.queues) == 1}
    limited = [Pool((queue,), limits[queue]) for queue in sorted(queues) if queue in limits]
    # The narrower of the two is what a queue of its own meets first.
    narrow = [pool for pool in limited if pool.slots < alone.get(pool.queues[0], pool.slots + 1)]
    replaced = {pool.queues[0] for pool in narrow if pool.queues[0] in alone}
    return [pool for pool in found if not (len(pool.queues) == 1 and pool.queues[0] in replaced)] + narrow
