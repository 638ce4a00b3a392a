"""How many retries a target is worth: a fixed rate, and a share of what is tried there for the first time.

When a target is down, everything sent to it fails and comes back, and the retries of many jobs become the load that keeps it down.
So in any ten seconds a target gets at most ten times the rate in retries, and a fifth of its first attempts. A retry that
succeeds gives its place back: a target that has recovered is worth as many as come.
"""

from __future__ import annotations

from collections import deque

_WINDOW_SECONDS = 10
_MANY_TARGETS = 1_000


class RetryBudget:
    """Counts first attempts and retries by target; instants are seconds on any clock that does not go back."""

    def __init__(self, per_second: float, share: float) -> None:
        self._always = per_second * _WINDOW_SECONDS
        self._share = share
        self._windows: dict[str, _Window] = {}
        # The cell of each target's last first attempt: the next one is likely to fall into the same second.
        self._latest: dict[str, _Cell] = {}

    def note_first(self, target: str, now: float) -> None:
        """Something is tried for the first time."""
        cell = self._latest.get(target)
        if cell is None or cell.second != int(now):
            cell = self._latest[target] = self._window(target, now).now(now)
        cell.firsts += 1

    def take(self, target: str, now: float) -> bool:
        """Take the place of one retry, if there is one."""
        window = self._window(target, now)
        cell = window.now(now)
        if window.retries() + 1 > self._always + self._share * window.firsts():
            return False
        cell.retries += 1
        return True

    def give_back(self, target: str, now: float) -> None:
        """A retry succeeded: its place is free again."""
        self._window(target, now).now(now).retries -= 1

    def _window(self, target: str, now: float) -> _Window:
        window = self._windows.get(target)
        if window is None:
            if len(self._windows) >= _MANY_TARGETS:
                self._forget_quiet(now)
            window = self._windows[target] = _Window()
        return window

    def _forget_quiet(self, now: float) -> None:
        self._windows = {target: window for target, window in self._windows.items() if not window.is_quiet(now)}
        self._latest.clear()


class _Cell:
    """What happened in one second."""

    __slots__ = ("firsts", "retries", "second")

    def __init__(self, second: int) -> None:
        self.second = second
        self.firsts = 0
        self.retries = 0


class _Window:
    """The last seconds of one target."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: deque[_Cell] = deque()

    def now(self, now: float) -> _Cell:
        """The cell of this second; those that are too old are dropped."""
        second = int(now)
        cells = self._cells
        if cells and cells[-1].second == second:
            return cells[-1]
        while cells and cells[0].second <= second - _WINDOW_SECONDS:
            cells.popleft()
        cells.append(_Cell(second))
        return cells[-1]

    def is_quiet(self, now: float) -> bool:
        return not self._cells or self._cells[-1].second <= now - _WINDOW_SECONDS

    def firsts(self) -> int:
        return sum(cell.firsts for cell in self._cells)

    def retries(self) -> int:
        # What succeeded may have been taken in a second that has left the window: no more is given back than was taken.
        return max(sum(cell.retries for cell in self._cells), 0)
