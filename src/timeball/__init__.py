"""Timeball: jobs at their exact time, on one machine or many.

The public names, listed once. Each is imported when it is first used, so that `import timeball` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from timeball.version import __version__

if TYPE_CHECKING:
    from timeball.app import Timeball
    from timeball.client import AsyncClient, Client
    from timeball.current import OutsideRun, current
    from timeball.errors import (
        Conflict,
        ExecutionFailed,
        InvalidInput,
        NotAllowed,
        NotFound,
        PayloadError,
        ResultTimeout,
        ScheduleError,
        ServerError,
        ServerUnreachable,
        SettingsError,
        StoreError,
        StoreUnavailable,
        TimeballError,
        TooManyRequests,
    )
    from timeball.handles import AsyncHandlerHandle, Call, Enqueueable, HandlerHandle, SyncHandlerHandle
    from timeball.outcomes import Cancel, Retry, Snooze
    from timeball.runs import Run
    from timeball.settings import Settings
    from timeball.transactions import ConnectionUnknown

__all__ = [
    "AsyncClient",
    "AsyncHandlerHandle",
    "Call",
    "Cancel",
    "Client",
    "Conflict",
    "ConnectionUnknown",
    "Enqueueable",
    "ExecutionFailed",
    "HandlerHandle",
    "InvalidInput",
    "NotAllowed",
    "NotFound",
    "OutsideRun",
    "PayloadError",
    "ResultTimeout",
    "Retry",
    "Run",
    "ScheduleError",
    "ServerError",
    "ServerUnreachable",
    "Settings",
    "SettingsError",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "SyncHandlerHandle",
    "Timeball",
    "TimeballError",
    "TooManyRequests",
    "__version__",
    "current",
]

_HOME = {
    "AsyncClient": "client",
    "Client": "client",
    "AsyncHandlerHandle": "handles",
    "Call": "handles",
    "Cancel": "outcomes",
    "ConnectionUnknown": "transactions",
    "Enqueueable": "handles",
    "HandlerHandle": "handles",
    "OutsideRun": "current",
    "Retry": "outcomes",
    "Run": "runs",
    "Settings": "settings",
    "Snooze": "outcomes",
    "SyncHandlerHandle": "handles",
    "Timeball": "app",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"timeball.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """This module, with one name that two things share: `timeball.current` is the object, for whoever asks.

    Its module bears the same name, and Python would put it here as soon as anybody imports it.
    """

    @property
    def current(self) -> Any:
        return import_module("timeball.current").current

    @current.setter
    def current(self, _module: ModuleType) -> None:
        return None


sys.modules[__name__].__class__ = _Package
