"""Secrets: named in payloads, known only to the worker, and only while a handler uses them."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, Field, field_validator

from timeball.current import RUNNING, current
from timeball.domain.execution import ClaimedExecution
from timeball.handlers.binding import HandlerRefused, Payload

REDACTED = "[secret]"
_PREFIX = "TIMEBALL_SECRET_"
_LARGEST = 64 * 1024
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
_BINDINGS = ("_HOSTS", "_QUEUES", "_HANDLERS")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f:]+\]?")
# Blotting out shorter ones would tear up innocent text, and would hide nothing that could not be guessed.
_MIN_REDACTED = 4


class SecretReference(Payload):
    """The name of a secret; the worker knows its value."""

    name: str = Field(alias="$secret", pattern=rf"^{_NAME.pattern}$", examples=["BILLING_TOKEN"])

    @field_validator("name")
    @classmethod
    def _is_no_binding(cls, name: str) -> str:
        if not is_secret_name(name):
            raise ValueError("names no secret: what ends so says where a secret may go")
        return name


def is_secret_name(name: object) -> bool:
    """Whether a secret can be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not name.endswith(_BINDINGS)


def names_in(value: Any) -> Iterator[str]:
    """The names of all secrets that a payload refers to, however deep."""
    match value:
        case SecretReference(name=name):
            yield name
        case {"$secret": str(name)} if len(value) == 1:
            yield name
        case BaseModel():
            yield from names_in(dict(value))
        case dict() | list() | tuple():
            for inner in value.values() if isinstance(value, dict) else value:
                yield from names_in(inner)


def check_references(value: Any) -> Any:
    """JSON as it is; ValueError if a reference in it, however deep, names what can be no secret."""
    match value:
        case {"$secret": name} if len(value) == 1 and not is_secret_name(name):
            raise ValueError("$secret names no secret, expected capital letters, digits and _, as in BILLING_TOKEN")
        case dict() | list():
            for inner in value.values() if isinstance(value, dict) else value:
                check_references(inner)
    return value


# A body of JSON, in which references stand for secrets.
JsonBody = Annotated[Any, AfterValidator(check_references)]


class SecretMissing(HandlerRefused):
    """A payload names a secret that this worker does not have."""

    code = "secret_missing"


class SecretRefused(HandlerRefused):
    """A payload names a secret that it may not have here, or not for this host."""

    code = "secret_refused"


class SecretUseRecorder(Protocol):
    """Who may use which secrets, as the store knows it."""

    async def use_secrets(self, claimed: ClaimedExecution, names: Sequence[str], *, is_bound: bool) -> bool:
        """Note the first use of these secrets by a job. False, and nothing is noted, if its payload may use bound secrets alone
        and these are not all *is_bound*."""


@dataclass(frozen=True, slots=True)
class SecretBinding:
    """Where a secret may go; an empty part says nothing."""

    name: str
    hosts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()

    def check(self, queue: str, handler: str) -> None:
        """SecretRefused if the secret is for other queues or handlers, or for hosts, which a command has not."""
        for given, allowed, what in ((queue, self.queues, "queue"), (handler, self.handlers, "handler")):
            if allowed and given not in allowed:
                raise self._refusal(f"the {what} {given}", f"{what}s {', '.join(allowed)}", f"_{what.upper()}S")

    def check_host(self, host: str | None) -> None:
        """SecretRefused if the secret may not go to a host; None is a program of this machine."""
        if not self.hosts or (host is None and self.handlers):
            return
        if host is None or not any(map(partial(_is_host, host.lower().rstrip(".")), self.hosts)):
            where = f"the host {host}" if host else "a command"
            raise self._refusal(where, f"hosts {', '.join(self.hosts)}", "_HOSTS" if host else "_HANDLERS")

    def _refusal(self, found: str, expected: str, setting: str) -> SecretRefused:
        return SecretRefused(
            f"the secret {self.name} is not for {found}, it is bound to the {expected}; "
            f"if that is meant, add it to {_PREFIX}{self.name}{setting} on the worker"
        )


class SecretStore:
    """The secrets of this worker: those of its environment, then those of a folder; and where each may go."""

    def __init__(
        self,
        folder: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        uses: SecretUseRecorder | None = None,
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._uses = uses

    def reveal(self, name: str) -> str:
        """The value of a secret; `SecretMissing` says where it was looked for."""
        value = self._find(name)
        if value is None:
            places = f"{_PREFIX}{name} is not set" + (f", {self._folder}/{name} is not there" if self._folder else "")
            raise SecretMissing(f"this worker has no secret {name}: {places}")
        return value

    def _find(self, name: str) -> str | None:
        value = self._environment.get(_PREFIX + name)
        return _read(self._folder / name) if value is None and self._folder is not None else value

    def binding(self, name: str) -> SecretBinding:
        """Where a secret may go, as it is set now."""
        return SecretBinding(name, *(_listed(self._find(name + ending)) for ending in _BINDINGS))

    def problems(self) -> list[str]:
        """What is wrong with the bindings in the environment: a host that is none, a binding of no secret."""
        problems = []
        for variable in sorted(self._environment):
            ending = next((each for each in _BINDINGS if variable.endswith(each)), None)
            if ending is None or not variable.startswith(_PREFIX):
                continue
            name = variable.removeprefix(_PREFIX).removesuffix(ending)
            if not is_secret_name(name) or self._find(name) is None:
                problems.append(f"{variable} is set, but this worker has no secret {name or 'of an empty name'}")
            if not (given := _listed(self._environment[variable])):
                problems.append(f"{variable} is empty, expected a list such as api.example.com,*.internal")
            elif ending == "_HOSTS":
                problems += [
                    f"{variable} has {host!r}, expected a host name, *.and.its.parents, or an address, without scheme and port"
                    for host in given
                    if not _HOST.fullmatch(host)
                ]
        return problems

    async def disclose(self, payload: Payload) -> SecretScope:
        """What gives the secrets of a payload to the attempt that runs; SecretRefused if it may not have one of them."""
        names = sorted(set(names_in(payload)))
        bindings = {name: self.binding(name) for name in names}
        for binding in bindings.values():
            binding.check(current.queue, current.handler)
        unbound = [name for name, binding in bindings.items() if not binding.hosts]
        if names and self._uses is not None:
            is_allowed = await self._uses.use_secrets(RUNNING.get().claimed, names, is_bound=not unbound)
            if not is_allowed:
                raise SecretRefused(
                    f"the secret {unbound[0]} is bound to no hosts, so only a payload that an administrator has written may "
                    f"name it; set {_PREFIX}{unbound[0]}_HOSTS on the worker, or let an administrator write this payload"
                )
        return SecretScope(self, bindings)


class SecretScope:
    """The secrets one attempt has been given, and what blots them out again."""

    def __init__(self, secrets: SecretStore, bindings: Mapping[str, SecretBinding] | None = None) -> None:
        self._secrets = secrets
        self._bindings = bindings or {}
        self._blots: set[str] = set()

    def for_host(self, host: str | None) -> None:
        """SecretRefused if one of the payload's secrets may not go to this host; None is a program of this machine."""
        for binding in self._bindings.values():
            binding.check_host(host)

    def reveal(self, value: str | SecretReference) -> str:
        """Text as it is; a reference as the secret it names, which is blotted out of everything from now on."""
        if isinstance(value, str):
            return value
        secret = self._secrets.reveal(value.name)
        self.hide(secret)
        return secret

    def reveal_within(self, value: Any) -> Any:
        """JSON with all references in it replaced, however deep."""
        match value:
            case {"$secret": str(name)} if len(value) == 1:
                return self.reveal(SecretReference.model_validate({"$secret": name}))
            case dict():
                return {key: self.reveal_within(inner) for key, inner in value.items()}
            case list():
                return [self.reveal_within(inner) for inner in value]
            case _:
                return value

    def hide(self, secret: str) -> None:
        """Blot out a secret, in the spellings in which it usually comes back."""
        if len(secret) < _MIN_REDACTED:
            return
        # A credential behind its scheme, as in "Bearer abc", may come back without it.
        for part in {secret, secret.strip(), secret.rpartition(" ")[2]}:
            if len(part) >= _MIN_REDACTED:
                encoded = b64encode(part.encode()).decode().rstrip("=")
                self._blots |= {part, json.dumps(part)[1:-1], quote(part, safe=""), encoded}

    @property
    def longest(self) -> int:
        """How long the longest of the hidden spellings is."""
        return max(map(len, self._blots), default=0)

    def redact(self, text: str) -> str:
        """The text without the secrets."""
        for secret in sorted(self._blots, key=len, reverse=True):
            text = text.replace(secret, REDACTED)
        return text


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _is_host(host: str, allowed: str) -> bool:
    allowed = allowed.lower().strip("[]")
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace").rstrip("\r\n")
    except OSError:
        return None
