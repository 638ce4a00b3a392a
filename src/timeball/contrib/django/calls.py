"""Calls of tasks as payloads: keyword arguments under their names, positional ones in a list under `$args`.

So a call is read back as it was made, and somebody who posts a job over HTTP need only know the names of the parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from timeball.contrib.django.frameworks import AnyTask
from timeball.domain.handler import PayloadMismatch
from timeball.handlers.refusals import arguments_misfit

_POSITIONAL = "$args"


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, without the context that some tasks take."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, payload: str) -> Call:
        """What a payload stands for."""
        document = orjson.loads(payload) or {}
        if not isinstance(document, dict) or not isinstance(document.get(_POSITIONAL, []), list):
            raise PayloadMismatch("the payload is no object, expected the arguments by their names", field="payload")
        return cls(document.pop(_POSITIONAL, []), document)

    def payload(self) -> dict[str, Any]:
        """The call as it is kept."""
        return ({_POSITIONAL: list(self.args)} if self.args else {}) | dict(self.kwargs)

    def check(self, task: AnyTask) -> None:
        """Refuse arguments that the task could not be called with."""
        signature = inspect.signature(task.func)
        context = (None,) if task.takes_context else ()
        try:
            signature.bind(*context, *self.args, **self.kwargs)
        except TypeError:
            own = tuple(signature.parameters.values())[len(context) :]
            misfit = arguments_misfit(task.func, own, self.args, self.kwargs)
            raise PayloadMismatch(str(misfit), field="payload", hint=misfit.hint, errors=misfit.errors) from None
