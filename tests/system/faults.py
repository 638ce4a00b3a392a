"""Faults that strike the processes of a cluster at random. `SOAK_SEED=...` repeats them as far as real processes repeat anything."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence

from tests.system.cluster import LEASE_SECONDS, Cluster, DurableServer, Process, eventually

MINUTES = float(os.environ.get("SOAK_MINUTES") or 0)
SECONDS = round(60 * MINUTES) or 20
SEED = int(os.environ.get("SOAK_SEED") or random.randrange(2**32))
NODES = 3
KILLS = ("kill worker", "kill scheduler")
FREEZES = ("freeze worker", "freeze scheduler")
RESTARTS = ("restart database", "restart database at once", "kill database")


class Faults:
    """Strikes at random, as the *deck* says, and heals."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        deck: Sequence[str],
        server: DurableServer | None = None,
        *,
        pauses: tuple[float, float] = (0.2, 1.0),
    ) -> None:
        self._cluster = cluster
        self._server = server
        self._rng = rng
        self._deck = deck
        self._pauses = pauses
        self._nodes: dict[str, list[Process]] = {"scheduler": [], "worker": []}
        self._thaws: list[asyncio.Task[None]] = []
        self.struck: Counter[str] = Counter()

    async def start_nodes(self) -> None:
        started = await self._cluster.nodes(schedulers=NODES, workers=NODES)
        self._nodes = {"scheduler": started[:NODES], "worker": started[NODES:]}

    async def strike_until(self, deadline: float) -> None:
        deck: list[str] = []
        while time.monotonic() < deadline:
            # Shuffled like cards, so that a short run meets every fault too.
            deck = deck or self._shuffled()
            fault = deck.pop()
            self.struck[fault] += 1
            await self._strike(fault)
            self._start_again()
            await asyncio.sleep(self._rng.uniform(*self._pauses))

    def _shuffled(self) -> list[str]:
        deck = list(self._deck)
        self._rng.shuffle(deck)
        return deck

    async def _strike(self, fault: str) -> None:
        verb, what = fault.split(" ", 1)
        if what in self._nodes:
            place = self._choose(self._nodes[what])
            if verb == "kill":
                self._replace(what, place)
            else:
                self._freeze(self._nodes[what][place])
        else:
            await self._restart_database(fault)

    def _choose(self, processes: list[Process]) -> int:
        """Rather one that lives than one that is still starting."""
        return max(
            self._rng.sample(range(NODES), NODES), key=lambda place: bool(processes[place].events("node.started"))
        )

    def _start_again(self) -> None:
        """Restart processes as an init system would: none exits by itself, unless it finds no database when it starts."""
        for kind, processes in self._nodes.items():
            for place, process in enumerate(processes):
                if not process.is_running:
                    assert not process.events("node.started"), f"a {kind} ended by itself:\n{process.tail()}"
                    assert "PostgreSQL cannot be reached" in process.tail()
                    self._replace(kind, place)

    def _replace(self, kind: str, place: int) -> None:
        self._nodes[kind][place].kill()
        start = self._cluster.launch_worker if kind == "worker" else self._cluster.launch_scheduler
        self._nodes[kind][place] = start()

    def _freeze(self, process: Process) -> None:
        process.freeze()
        seconds = self._rng.choice((0.5, LEASE_SECONDS + 1, LEASE_SECONDS + 2))
        self._thaws.append(asyncio.ensure_future(self._thaw_after(process, seconds)))

    async def _thaw_after(self, process: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if process.is_running:
            process.thaw()

    async def _restart_database(self, fault: str) -> None:
        assert self._server is not None
        stop = {
            "restart database": self._server.stop,
            "restart database at once": self._server.stop_at_once,
            "kill database": self._server.kill,
        }[fault]
        away = self._rng.choice((0, 0.5, 2.0))
        # In a thread, so that those who enqueue run into it.
        await asyncio.to_thread(stop)
        await asyncio.sleep(away)
        await asyncio.to_thread(self._server.start)

    async def heal(self) -> None:
        """Wait until everybody is there and awake."""
        await asyncio.gather(*self._thaws)
        await eventually(self._are_all_there, "all nodes are back", 60)

    def _are_all_there(self) -> bool:
        self._start_again()
        nodes = [process for processes in self._nodes.values() for process in processes]
        return all(process.events("node.started") for process in nodes)
