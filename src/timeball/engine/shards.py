"""This scheduler's share of the schedule.

The shards are shared out by a rule that every scheduler computes alike from the list of living schedulers (`fair_share`). Each one
gives up what belongs to another, and takes what belongs to it once nobody alive owns it: at once after a clean release, within the
lease after a death. The epoch that comes with each acquisition keeps a scheduler that slept through its own death from hoisting;
what makes hoisting safe is the comparison on the row itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from timeball.domain.events import Emit, ShardsChanged
from timeball.domain.ids import Incarnation
from timeball.domain.node import fair_share
from timeball.engine.service import Service
from timeball.env import Env
from timeball.store.interface import NodeStore

_INTERVAL = timedelta(seconds=1)
# The shard whose owner does the housekeeping for all.
HOUSEKEEPING_SHARD = 0


class ShardKeeper(Service):
    """Takes and releases shards until this scheduler owns its fair share."""

    def __init__(
        self, env: Env, emit: Emit, nodes: NodeStore, incarnation: Incarnation, on_change: Callable[[], None]
    ) -> None:
        super().__init__(env, emit)
        self._nodes = nodes
        self.incarnation = incarnation
        self._on_change = on_change
        self.epochs: dict[int, int] = {}
        self._sharers: tuple[tuple[int, ...], frozenset[Incarnation]] | None = None
        self._share: dict[int, Incarnation] = {}

    @property
    def is_housekeeper(self) -> bool:
        """Whether the housekeeping of the whole system falls to this scheduler."""
        return HOUSEKEEPING_SHARD in self.epochs

    async def tick(self) -> timedelta:
        shards = await self._nodes.shards()
        living = await self._nodes.schedulers()
        share = self._fair_share([shard.id for shard in shards], living)
        mine = {shard for shard, owner in share.items() if owner == self.incarnation}
        owned = {shard.id: shard.epoch for shard in shards if shard.owner == self.incarnation}
        surplus = sorted(owned.keys() - mine)
        if surplus:
            self._forget(surplus)
            await self._nodes.release_shards(self.incarnation, surplus)
        vacant = [shard.id for shard in shards if shard.id in mine and shard.id not in owned and not shard.owner_lives]
        taken = await self._nodes.take_shards(self.incarnation, vacant) if vacant else {}
        kept = {shard: epoch for shard, epoch in owned.items() if shard in mine}
        self._become(kept | taken, gained=len(taken), released=len(surplus))
        return _INTERVAL

    def _fair_share(self, shards: Sequence[int], living: Sequence[Incarnation]) -> dict[int, Incarnation]:
        """Computed when somebody came or went, and not every second: it was a seventh of what an idle scheduler computes."""
        sharers = (tuple(shards), frozenset(living))
        if sharers != self._sharers:
            self._sharers, self._share = sharers, fair_share(shards, living)
        return self._share

    def _forget(self, shards: list[int]) -> None:
        """Hoist nothing more of these, even before the release has been written."""
        for shard in shards:
            self.epochs.pop(shard, None)

    def _become(self, epochs: dict[int, int], *, gained: int, released: int) -> None:
        changed = epochs != self.epochs
        self.epochs = epochs
        if gained or released:
            self.emit(ShardsChanged(gained, released, len(epochs)))
        if changed:
            self._on_change()
