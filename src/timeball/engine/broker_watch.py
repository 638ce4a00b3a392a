"""How this node's broker does: said when it changes, shown with every renewal of the lease."""

from __future__ import annotations

from timeball.domain.events import BrokerLost, BrokerSilent, BrokerWorks, Emit
from timeball.domain.node import BrokerState, BrokerStatus

_LONGEST_ERROR = 500


class BrokerWatch:
    """Knows the state of the broker as this node sees it; until it has been reached, it is down."""

    def __init__(self, emit: Emit, kind: str) -> None:
        self._emit = emit
        self._kind = kind
        self._has_spoken = False
        self.status = BrokerStatus(BrokerState.DOWN, "not reached yet")

    @property
    def works(self) -> bool:
        """Whether tickets bring what is ready."""
        return self.status.state is BrokerState.WORKS

    @property
    def is_down(self) -> bool:
        """Whether it cannot be reached."""
        return self.status.state is BrokerState.DOWN

    def found(self) -> None:
        """Tickets go through, or could."""
        if self._becomes(BrokerState.WORKS):
            self._emit(BrokerWorks(self._kind))

    def lost(self, error: Exception) -> None:
        """Nothing goes through."""
        text = str(error)[:_LONGEST_ERROR]
        if self._becomes(BrokerState.DOWN, text):
            self._emit(BrokerLost(self._kind, text))

    def silent(self) -> None:
        """Something was ready for long, and no ticket came."""
        if self._becomes(BrokerState.SILENT):
            self._emit(BrokerSilent(self._kind))

    def _becomes(self, state: BrokerState, error: str | None = None) -> bool:
        """Whether this is news."""
        is_news = state is not self.status.state or not self._has_spoken
        self._has_spoken = True
        self.status = BrokerStatus(state, error)
        return is_news
