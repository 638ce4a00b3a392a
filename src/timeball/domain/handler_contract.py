"""Contracts of handlers: what a worker publishes of each handler when it starts, and what jobs take from it.

A contract is the JSON Schema of the payload, the options that were declared with the handler, its docstring and how it runs. The
fingerprint names exactly that, so two workers with the same code publish the same one. Of several contracts of a handler, the newest is
the one that a worker process started with last: a deploy makes its contract the newest, and so does its roll-back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import orjson

from timeball.domain.job_fields import OPTION_FIELDS, JobSpec
from timeball.domain.policies import Delivery, is_serial_word


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContract:
    """What a worker publishes of a handler. *options* are fields of a job; those left out are the usual ones."""

    name: str
    schema: Mapping[str, Any]
    options: Mapping[str, Any]
    doc: str
    run_style: str

    @property
    def fingerprint(self) -> str:
        """The name of exactly this contract: equal contracts have equal fingerprints."""
        parts = [self.name, self.schema, self.options, self.doc, self.run_style]
        return blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractVersion:
    """A published contract of a handler: since when it is known, when a worker last started with it, and which living workers have it."""

    name: str
    fingerprint: str
    options: Mapping[str, Any]
    doc: str
    run_style: str
    published_at: datetime
    started_at: datetime
    is_newest: bool
    workers: Sequence[str] = ()


def short_fingerprint(fingerprint: str) -> str:
    """A fingerprint as people read it."""
    return fingerprint[:8]


def inherit_options(spec: JobSpec, given_fields: Collection[str], options: Mapping[str, Any]) -> JobSpec:
    """The spec with the handler's options in the fields that were not given."""
    taken = {name: value for name, value in options.items() if name in OPTION_FIELDS and name not in given_fields}
    if is_serial_word(spec.overlap):
        taken.pop("max_running", None)
    if "tags" in taken:
        taken["tags"] = tuple(taken["tags"])
    if taken.get("max_running") is not None and spec.limit_key is None:
        # The limit is that of all jobs of the handler; a one-off's own would limit nothing.
        taken["limit_key"] = spec.handler
    return replace(spec, **taken)


def keep_at_most_once(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an edit that chooses another handler: `at_most_once` is not loosened unless the edit says so."""
    if "delivery" in fields or options.get("delivery") != Delivery.AT_MOST_ONCE:
        return dict(fields)
    return {**fields, "delivery": Delivery.AT_MOST_ONCE}


def clear_inherited_limit(fields: Mapping[str, Any], limit_key: str | None, handler: str) -> Mapping[str, Any]:
    """The fields of an edit: with the limit, the key goes that the job took from its handler (see `inherit`)."""
    is_taken_away = "max_running" in fields and fields["max_running"] is None and "limit_key" not in fields
    return {**fields, "limit_key": None} if is_taken_away and limit_key == handler else fields


class MismatchAction(StrEnum):
    """What becomes of an execution whose payload does not fit the contract of the worker that claimed it."""

    DEAD = "dead"
    # Given back at once; the worker claims nothing of this handler while a living worker has a newer contract.
    LEAVE_TO_NEWER = "leave_to_newer"
    # Given back for a while: another living worker takes such payloads, or a worker of the newest contract has to start.
    WAIT = "wait"


# How long an execution waits that another living worker takes; and one for which a worker has to be started first.
_SOON = timedelta(seconds=1)
_LATER = timedelta(seconds=5)


def decide_mismatch(
    versions: Sequence[ContractVersion], fingerprint: str, takes: Callable[[str], bool]
) -> tuple[MismatchAction, timedelta]:
    """What follows a mismatch on a worker with this contract; *takes* tells whether another one takes the payload.

    Only the newest contract makes an execution dead, and not while a living worker has one that takes it.
    """
    newest = next((version for version in versions if version.is_newest), None)
    if newest is None or newest.fingerprint == fingerprint:
        others = (version for version in versions if version.workers and version.fingerprint != fingerprint)
        if any(takes(version.fingerprint) for version in others):
            return MismatchAction.WAIT, _SOON
        return MismatchAction.DEAD, timedelta(0)
    if has_newer_contract(versions, fingerprint):
        return MismatchAction.LEAVE_TO_NEWER, timedelta(0)
    return MismatchAction.WAIT, _LATER


def has_newer_contract(versions: Sequence[ContractVersion], fingerprint: str) -> bool:
    """Whether a living worker has a contract of the handler that is newer than this one."""
    own = next((version for version in versions if version.fingerprint == fingerprint), None)
    return own is not None and any(
        version.workers and (version.is_newest or version.started_at > own.started_at) and version is not own
        for version in versions
    )


# showing


def first_sentence(doc: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return doc.partition("\n\n")[0].replace("\n", " ")


def example_of(schema: Mapping[str, Any]) -> Any:
    """The example of the model, or one made of its fields' examples and defaults."""
    if schema.get("examples"):
        return schema["examples"][0]
    fields = {name: _example_of_field(field) for name, field in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return {name: value for name, value in fields.items() if value is not None or name in required}


def _example_of_field(field: dict[str, Any]) -> Any:
    example = field.get("examples", [field.get("default")])[0]
    return _PLACEHOLDERS.get(field.get("type", "")) if example is None else example


_PLACEHOLDERS: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "array": [], "object": {}}
