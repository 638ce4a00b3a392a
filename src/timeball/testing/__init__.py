"""Tests of programs that use Timeball: a pytest plugin, and a clock that the test moves. The rest of Timeball does not import this.

The names are imported when they are first used: pytest loads the plugin wherever Timeball is installed, also for tests that never use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeball.testing.environment import VirtualClock
    from timeball.testing.harness import Fired, HarnessClock, TimeballHarness
    from timeball.testing.nodes import DrainResult

__all__ = ["DrainResult", "Fired", "HarnessClock", "TimeballHarness", "VirtualClock"]

_MODULES = {"VirtualClock": "environment", "DrainResult": "nodes"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"timeball.testing.{_MODULES.get(name, 'harness')}"), name)
    globals()[name] = value
    return value
