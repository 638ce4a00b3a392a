"""Channels: where alerts go, what each kind of channel needs to know, and the checks of its settings.

A kind has a table of its fields (`CHANNEL_FIELDS`), from which come the checks, the form of the dashboard, the words of the command line
and the reference. A secret is never stored: a field that holds one takes a reference, `{"$secret": "NAME"}`, whose value only the workers
know. So nothing that shows, exports or audits a channel can tell its secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from timeball.domain.policies import Policy
from timeball.domain.values.field_errors import (
    FieldError,
    describe_mismatch,
    describe_unknown_name,
    describe_value,
    list_choices,
    summarize,
    unexpected_value,
)
from timeball.domain.values.redaction import is_secret, redact
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput

MAX_ITEMS: Final = 100
_MAX_TEXT = 4_000
# A name of a channel or a route stands in addresses of pages and of the API.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")


class ChannelKind(Policy):
    """How a channel sends what it is told."""

    WEBHOOK = "webhook", "a signed HTTP request with the alert as JSON"
    SLACK = "slack", "a message by an incoming webhook of Slack"
    EMAIL = "email", "a mail through the mail server of the workers"
    PAGERDUTY = "pagerduty", "an event of PagerDuty, which opens, acknowledges and resolves an incident"
    COMMAND = "command", "a program of the workers' machine; written by administrators only"

    @property
    def handler(self) -> str:
        """The built-in handler that sends its messages."""
        match self:
            case ChannelKind.EMAIL:
                return "email.send"
            case ChannelKind.COMMAND:
                return "shell.command"
            case _:
                return "http.webhook"

    @property
    def is_for_administrators(self) -> bool:
        """Whether only an administrator may write such a channel."""
        return self is ChannelKind.COMMAND


class SettingRule(StrEnum):
    """What a setting of a channel takes."""

    TEXT = "text"
    # An address in plain text, or a secret that is one.
    ADDRESS = "address"
    SECRET = "secret"  # noqa: S105 - a word, and none itself
    SECRETS = "secrets"
    TEXTS = "texts"
    # Texts or secrets.
    ARGUMENTS = "arguments"
    # Names with texts or secrets.
    PAIRS = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelField:
    """A setting of a kind of channel. *choices* are the words that a text may be."""

    name: str
    label: str
    rule: SettingRule
    about: str
    is_required: bool = False
    choices: tuple[str, ...] = ()


# fmt: off
CHANNEL_FIELDS: Final[Mapping[ChannelKind, tuple[ChannelField, ...]]] = MappingProxyType({
    ChannelKind.WEBHOOK: (
        ChannelField(name="url", label="Address", rule=SettingRule.ADDRESS, is_required=True,
            about="Where the request goes; https, unless an administrator allows http."),
        ChannelField(name="headers", label="Headers", rule=SettingRule.PAIRS,
            about="Headers of the request; a credential is a secret."),
        ChannelField(name="signing_secret", label="Signing secret", rule=SettingRule.SECRETS,
            about="Signs the request by Standard Webhooks; during a rotation the old and the new secret."),
    ),
    ChannelKind.SLACK: (
        ChannelField(name="url", label="Incoming webhook", rule=SettingRule.SECRET, is_required=True,
            about="The secret that is the address of the incoming webhook: everybody who knows it can post."),
    ),
    ChannelKind.EMAIL: (
        ChannelField(name="to", label="To", rule=SettingRule.TEXTS, is_required=True,
            about="The addresses that get the mail."),
        ChannelField(name="cc", label="Copies to", rule=SettingRule.TEXTS,
            about="Addresses that get a copy."),
    ),
    ChannelKind.PAGERDUTY: (
        ChannelField(name="routing_key", label="Integration key", rule=SettingRule.SECRET, is_required=True,
            about="The secret that is the integration key of a service, for Events API v2."),
        ChannelField(name="region", label="Region", rule=SettingRule.TEXT, choices=("us", "eu"),
            about="Where the account is: us (the default) or eu."),
        ChannelField(name="url", label="Address", rule=SettingRule.TEXT,
            about="Another address that takes the same events, in place of PagerDuty's."),
    ),
    ChannelKind.COMMAND: (
        ChannelField(name="command", label="Program", rule=SettingRule.TEXT, is_required=True,
            about="A program of TIMEBALL_SHELL_PROGRAMS, or the last part of its path. It finds the alert in variables TIMEBALL_ALERT_..."),
        ChannelField(name="args", label="Arguments", rule=SettingRule.ARGUMENTS,
            about="Its arguments, each as it is: no shell reads them."),
        ChannelField(name="env", label="Variables", rule=SettingRule.PAIRS,
            about="More variables, from the list TIMEBALL_SHELL_ENV of the workers."),
    ),
})
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChannel:
    """A place that alerts go to. With *bound_secrets_only* it may use only secrets that are bound to hosts."""

    name: str
    kind: ChannelKind
    settings: Mapping[str, Any]
    description: str | None = None
    bound_secrets_only: bool = False
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets that its settings refer to."""
        return tuple(dict.fromkeys(_secret_names(self.settings)))


def _secret_names(value: Any) -> Iterator[str]:
    match value:
        case {"$secret": str(name)} if len(value) == 1:
            yield name
        case Mapping():
            for inner in value.values():
                yield from _secret_names(inner)
        case list() | tuple():
            for inner in value:
                yield from _secret_names(inner)


def check_channel(name: object, kind: object, settings: object, description: object = None) -> AlertChannel:
    """A channel whose settings fit its kind; InvalidInput names each that does not, without repeating what may be a secret."""
    chosen = check_kind(kind)
    return AlertChannel(
        name=check_name(name),
        kind=chosen,
        settings=check_settings(chosen, settings),
        description=None if description is None else check_description(description, "description"),
    )


def check_name(name: object, what: str = "name") -> str:
    """The name of a channel or a route."""
    label = check_label(name, what, longest=100)
    if not _NAME.fullmatch(label):
        raise unexpected_value(what, label, "letters, digits, dots, - and _, as in on-call")
    return label


def check_kind(kind: object) -> ChannelKind:
    """A kind by its word."""
    try:
        return ChannelKind(str(kind))
    except ValueError:
        raise unexpected_value("kind", kind, list_choices(ChannelKind)) from None


def check_settings(kind: ChannelKind, settings: object) -> dict[str, Any]:
    """The settings of a channel of this kind as they are stored; all that does not fit is told at once."""
    if not isinstance(settings, Mapping):
        raise unexpected_value("settings", settings, "an object")
    fields = {field.name: field for field in CHANNEL_FIELDS[kind]}
    errors: list[FieldError] = []
    for name in settings:
        if name not in fields:
            detail = describe_unknown_name(str(name), tuple(fields))
            errors.append(FieldError(path=(str(name),), detail=f"{detail} for the kind {kind}", is_unknown=True))
    checked: dict[str, Any] = {}
    for name, field in fields.items():
        value = settings.get(name)
        if value is None or value in ("", [], {}):
            if field.is_required:
                errors.append(FieldError(path=(name,), detail=f"{name} is missing, expected {_expected(field)}"))
            continue
        problems = list(_problems(field, value))
        errors += problems
        if not problems:
            checked[name] = list(value) if isinstance(value, tuple) else value
    if errors:
        raise settings_error(kind, errors)
    return checked


def settings_error(kind: ChannelKind, errors: list[FieldError]) -> InvalidInput:
    """The error for settings that do not fit."""
    needs_secret = any('{"$secret"' in error.detail for error in errors)
    return InvalidInput(
        f"the settings do not fit the kind {kind}: {summarize(errors)}",
        field=f"settings{errors[0].pointer}",
        hint="the value belongs on the workers: set TIMEBALL_SECRET_NAME there, and name it here"
        if needs_secret
        else None,
        errors=[error.below("/settings") for error in errors],
    )


def _problems(field: ChannelField, value: Any) -> Iterator[FieldError]:
    match field.rule:
        case SettingRule.TEXT:
            if not _is_text(value):
                yield _mismatch(field, (field.name,), value)
            elif field.choices and value not in field.choices:
                yield FieldError(
                    path=(field.name,),
                    detail=describe_mismatch(field.name, " or ".join(field.choices), describe_value(value, field.name)),
                )
            elif redact(value) != value:
                yield _plain_secret((field.name,))
        case SettingRule.ADDRESS:
            if isinstance(value, Mapping):
                yield from _secret_problems((field.name,), value)
            elif not _is_text(value):
                yield _mismatch(field, (field.name,), value)
            elif redact(value) != value:
                # A password or a token in the address: the whole address is the secret then.
                yield _plain_secret((field.name,))
        case SettingRule.SECRET:
            yield from _secret_problems((field.name,), value)
        case SettingRule.SECRETS:
            several = value if isinstance(value, list | tuple) else [value]
            for number, one in enumerate(several):
                place = (field.name, str(number)) if several is value else (field.name,)
                yield from _secret_problems(place, one)
        case SettingRule.TEXTS | SettingRule.ARGUMENTS:
            if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
                yield _mismatch(field, (field.name,), value)
                return
            for number, one in enumerate(value):
                if isinstance(one, Mapping) and field.rule is SettingRule.ARGUMENTS:
                    yield from _secret_problems((field.name, str(number)), one)
                elif not _is_text(one):
                    yield _mismatch(field, (field.name, str(number)), one)
        case SettingRule.PAIRS:
            if not isinstance(value, Mapping) or len(value) > MAX_ITEMS:
                yield _mismatch(field, (field.name,), value)
                return
            for name, one in value.items():
                place = (field.name, str(name))
                if isinstance(one, Mapping):
                    yield from _secret_problems(place, one)
                elif not _is_text(one):
                    yield _mismatch(field, place, one)
                elif is_secret(str(name)) or redact(one) != one:
                    yield _plain_secret(place)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and "\0" not in value


def _mismatch(field: ChannelField, path: tuple[str, ...], value: Any) -> FieldError:
    return FieldError(path=path, detail=describe_mismatch(".".join(path), _expected(field), _found(value, path[-1])))


def _found(value: Any, key: str) -> str:
    """What a value is. A text in the wrong place may be a secret, and is not shown."""
    if not isinstance(value, str):
        return describe_value(value, key)
    return "contains a NUL character" if "\0" in value else f"is a text of {len(value):,} characters"


def _secret_problems(path: tuple[str, ...], value: Any) -> Iterator[FieldError]:
    match value:
        case {"$secret": str(name)} if len(value) == 1:
            if not _SECRET_NAME.fullmatch(name) or name.endswith(("_HOSTS", "_QUEUES", "_HANDLERS")):
                detail = f"{'.'.join(path)} names no secret, expected capital letters, digits and _, as in {_REFERENCE}"
                yield FieldError(path=path, detail=detail)
        case _:
            yield _plain_secret(path)


_REFERENCE = '{"$secret": "ALERTS_TOKEN"}'


def _plain_secret(path: tuple[str, ...]) -> FieldError:
    return FieldError(
        path=path, detail=f"{'.'.join(path)} is a plain value, expected the name of a secret: {_REFERENCE}"
    )


def _expected(field: ChannelField) -> str:
    match field.rule:
        case SettingRule.SECRET:
            return f"the name of a secret: {_REFERENCE}"
        case SettingRule.SECRETS:
            return f"the names of one or several secrets: {_REFERENCE}"
        case SettingRule.ADDRESS:
            return f"an address such as https://example.com/alerts, or a secret that is one: {_REFERENCE}"
        case SettingRule.TEXTS:
            return f"a list of up to {MAX_ITEMS} texts"
        case SettingRule.ARGUMENTS:
            return f"a list of up to {MAX_ITEMS} texts or secrets"
        case SettingRule.PAIRS:
            return f"an object of up to {MAX_ITEMS} names with texts or secrets"
        case SettingRule.TEXT:
            return " or ".join(field.choices) or f"text of up to {_MAX_TEXT:,} characters"
