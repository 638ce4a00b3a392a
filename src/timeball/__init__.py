"""Timeball: jobs at their exact time, on one machine or many.

These are the public names. Each is imported when it is first used, so that `import timeball` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from timeball.version import __version__

if TYPE_CHECKING:
    from timeball.client import AsyncClient, Client
    from timeball.config.settings import Settings
    from timeball.current import ActiveRun, Cancel, Cancelled, OutsideRun, Retry, Snooze, Stopped, TimedOut, current
    from timeball.domain.expectations import Expect
    from timeball.domain.handler import Isolate
    from timeball.errors import (
        Conflict,
        ExecutionFailed,
        InlineOnly,
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
    from timeball.handlers.dependencies import Depends
    from timeball.sdk.app import FailedRun, Timeball
    from timeball.sdk.enqueue_hooks import PendingEnqueue
    from timeball.sdk.groups import Chain, Group, GroupRun
    from timeball.sdk.handlers import AsyncHandlerHandle, Call, Enqueueable, HandlerHandle, SyncHandlerHandle
    from timeball.sdk.inline_runs import InlineRun
    from timeball.sdk.jobs import Job, ScheduledJob
    from timeball.sdk.runs import Run
    from timeball.sdk.transactions import ConnectionUnknown

__all__ = [
    "ActiveRun",
    "AsyncClient",
    "AsyncHandlerHandle",
    "Call",
    "Cancel",
    "Cancelled",
    "Chain",
    "Client",
    "Conflict",
    "ConnectionUnknown",
    "Depends",
    "Enqueueable",
    "ExecutionFailed",
    "Expect",
    "FailedRun",
    "Group",
    "GroupRun",
    "HandlerHandle",
    "InlineOnly",
    "InlineRun",
    "InvalidInput",
    "Isolate",
    "Job",
    "NotAllowed",
    "NotFound",
    "OutsideRun",
    "PayloadError",
    "PendingEnqueue",
    "ResultTimeout",
    "Retry",
    "Run",
    "ScheduleError",
    "ScheduledJob",
    "ServerError",
    "ServerUnreachable",
    "Settings",
    "SettingsError",
    "Snooze",
    "Stopped",
    "StoreError",
    "StoreUnavailable",
    "SyncHandlerHandle",
    "Timeball",
    "TimeballError",
    "TimedOut",
    "TooManyRequests",
    "__version__",
    "current",
]

_MODULES = {
    "ActiveRun": "current",
    "AsyncClient": "client",
    "Chain": "sdk.groups",
    "Client": "client",
    "AsyncHandlerHandle": "sdk.handlers",
    "Call": "sdk.handlers",
    "Cancel": "current",
    "Cancelled": "current",
    "ConnectionUnknown": "sdk.transactions",
    "Depends": "handlers.dependencies",
    "Enqueueable": "sdk.handlers",
    "Expect": "domain.expectations",
    "FailedRun": "sdk.app",
    "Group": "sdk.groups",
    "GroupRun": "sdk.groups",
    "HandlerHandle": "sdk.handlers",
    "InlineRun": "sdk.inline_runs",
    "Isolate": "domain.handler",
    "Job": "sdk.jobs",
    "OutsideRun": "current",
    "PendingEnqueue": "sdk.enqueue_hooks",
    "Retry": "current",
    "Run": "sdk.runs",
    "ScheduledJob": "sdk.jobs",
    "Settings": "config.settings",
    "Snooze": "current",
    "Stopped": "current",
    "SyncHandlerHandle": "sdk.handlers",
    "TimedOut": "current",
    "Timeball": "sdk.app",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"timeball.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """This module, with one name for two things: `timeball.current` is always the object.

    The module of the object has the same name, and Python would set the attribute to the module at its first import.
    """

    @property
    def current(self) -> Any:
        return import_module("timeball.current").current

    @current.setter
    def current(self, _module: ModuleType) -> None:
        return None


sys.modules[__name__].__class__ = _Package
