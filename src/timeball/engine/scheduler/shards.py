"""Which shards of the schedule this scheduler owns: its fair share among all that are alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from timeball.domain.node import fair_share
from timeball.domain.values.ids import Incarnation
from timeball.domain.wakeup import Wakeup
from timeball.engine.node import Service
from timeball.env import Env
from timeball.store.nodes import NodeStore
from timeball.store.types import ShardHolding
from timeball.telemetry.events import Emit, ShardsChanged

_INTERVAL = timedelta(seconds=1)
# The owner of this shard does the housekeeping of the whole installation.
HOUSEKEEPING_SHARD = 0


class ShardBalancer(Service):
    """Takes and releases shards until this scheduler owns its fair share."""

    def __init__(
        self, env: Env, emit: Emit, nodes: NodeStore, incarnation: Incarnation, on_change: Callable[[], None]
    ) -> None:
        super().__init__(env, emit)
        self._nodes = nodes
        self.incarnation = incarnation
        self._on_change = on_change
        self.epochs: dict[int, int] = {}
        self._sharers: tuple[frozenset[int], frozenset[Incarnation]] | None = None
        self._share: set[int] = set()
        # The holdings when nothing was left to do. While they stay the same, nothing has to be computed.
        self._settled: Sequence[ShardHolding] | None = None

    @property
    def is_housekeeper(self) -> bool:
        """Whether this scheduler does the housekeeping of the whole installation."""
        return HOUSEKEEPING_SHARD in self.epochs

    def on_wakeup(self, wakeup: Wakeup) -> None:
        if wakeup.nodes_changed:
            self.wake()

    async def tick(self) -> timedelta:
        holdings = await self._nodes.holdings()
        if holdings == self._settled:
            return _INTERVAL
        self._settled = None
        mine = self._fair_share(holdings)
        owned: dict[int, int] = {}
        vacant: list[int] = []
        for holding in holdings:
            if holding.owner == self.incarnation:
                owned.update(holding.epochs)
            elif not holding.is_alive:
                vacant += [shard for shard in holding.epochs if shard in mine]
        surplus = sorted(owned.keys() - mine)
        if surplus:
            self._forget(surplus)
            await self._nodes.release_shards(self.incarnation, surplus)
        taken = await self._nodes.take_shards(self.incarnation, sorted(vacant)) if vacant else {}
        kept = {shard: epoch for shard, epoch in owned.items() if shard in mine}
        self._become(kept | taken, gained=len(taken), released=len(surplus))
        if not surplus and not vacant:
            self._settled = holdings
        return _INTERVAL

    def _fair_share(self, holdings: Sequence[ShardHolding]) -> set[int]:
        """The shards that this scheduler should own; computed when the schedulers or shards have changed."""
        shards = frozenset(shard for holding in holdings for shard in holding.epochs)
        living = frozenset(holding.owner for holding in holdings if holding.owner is not None and holding.takes_shards)
        if (shards, living) != self._sharers:
            self._sharers = shards, living
            owners = fair_share(shards, living)
            self._share = {shard for shard, owner in owners.items() if owner == self.incarnation}
        return self._share

    def _forget(self, shards: list[int]) -> None:
        """Promote nothing more of these, even before the release has been written."""
        for shard in shards:
            self.epochs.pop(shard, None)

    def _become(self, epochs: dict[int, int], *, gained: int, released: int) -> None:
        changed = epochs != self.epochs
        self.epochs = epochs
        if gained or released:
            self.emit(ShardsChanged(gained, released, len(epochs)))
        if changed:
            self._on_change()
