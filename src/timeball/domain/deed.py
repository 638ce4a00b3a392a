"""What is to be done once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import shake_128
from uuid import UUID

from timeball.domain.ids import made_at, new_ids


@dataclass(frozen=True, slots=True)
class Deed:
    """A wish that may come again, because nobody knows what became of it: what it makes has the same ids each time."""

    seed: UUID
    # Whether it was tried before.
    is_repeated: bool = False

    @property
    def begun_at(self) -> datetime:
        """When it was first asked for."""
        return made_at(self.seed)

    def parts(self, number: int) -> list[Deed]:
        """So many deeds that it consists of."""
        return [Deed(seed, self.is_repeated) for seed in self.ids(number)]

    def ids(self, number: int) -> Iterator[UUID]:
        """So many ids, in their order; the same, whoever asks."""
        bits = shake_128(self.seed.bytes).digest(16 + 4 * number)
        return new_ids(self.seed.int >> 80, int.from_bytes(bits[:16], "big") >> 55, memoryview(bits[16:]).cast("I"))
