"""What makes jobs easy to test: a pytest plugin, and a clock you move by hand. Imported by nothing in Timeball itself.

The names are imported when they are first used: pytest loads the plugin for everybody, also for those who never ask for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeball.testing.clock import VirtualClock
    from timeball.testing.rehearsal import Fired, Rehearsal, RehearsalClock
    from timeball.testing.stage import Tally

__all__ = ["Fired", "Rehearsal", "RehearsalClock", "Tally", "VirtualClock"]

_HOME = {"VirtualClock": "clock", "Tally": "stage"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"timeball.testing.{_HOME.get(name, 'rehearsal')}"), name)
    globals()[name] = value
    return value
