"""Secrets: named in payloads, known only to the worker, and only while a handler uses them.

    {"headers": {"Authorization": {"$secret": "BILLING_TOKEN"}}}

The value comes from `TIMEBALL_SECRET_BILLING_TOKEN` in the worker's environment, or else from the file `BILLING_TOKEN` in the
folder `TIMEBALL_SECRETS_DIR` (as containers mount them). It is never stored, shown or logged: a handler takes its secrets from a
`Disclosure`, which also blots them out of all that the handler says afterwards, before anything is shortened: half a
secret at a cut would not be recognised any more.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, Field

from timeball.handlers.typed import Payload, Refused

BLOT = "[secret]"
_PREFIX = "TIMEBALL_SECRET_"
_LARGEST = 64 * 1024
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
# Blotting out shorter ones would tear up innocent text, and would hide nothing that could not be guessed.
_SHORTEST_BLOTTED = 4


class SecretReference(Payload):
    """The name of a secret; the worker knows its value."""

    name: str = Field(alias="$secret", pattern=rf"^{_NAME.pattern}$", examples=["BILLING_TOKEN"])


def is_secret_name(name: object) -> bool:
    """Whether a secret can be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


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


class SecretMissing(Refused):
    """A payload names a secret that this worker does not have."""

    code = "secret_missing"


class Secrets:
    """The secrets of this worker: those of its environment, then those of a folder."""

    def __init__(self, folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._environment = environment

    def reveal(self, name: str) -> str:
        """The value of a secret; `SecretMissing` says where it was looked for."""
        found = self._environment.get(_PREFIX + name)
        if found is None and self._folder is not None:
            found = _read(self._folder / name)
        if found is None:
            places = f"{_PREFIX}{name} is not set" + (f", {self._folder}/{name} is not there" if self._folder else "")
            raise SecretMissing(f"this worker has no secret {name}: {places}")
        return found


class Disclosure:
    """The secrets one attempt has been given, and what blots them out again."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._blots: set[str] = set()

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
        if len(secret) < _SHORTEST_BLOTTED:
            return
        # A credential behind its scheme, as in "Bearer abc", may come back without it.
        for part in {secret, secret.strip(), secret.rpartition(" ")[2]}:
            if len(part) >= _SHORTEST_BLOTTED:
                encoded = b64encode(part.encode()).decode().rstrip("=")
                self._blots |= {part, json.dumps(part)[1:-1], quote(part, safe=""), encoded}

    @property
    def longest(self) -> int:
        """How long the longest of the hidden spellings is."""
        return max(map(len, self._blots), default=0)

    def redact(self, text: str) -> str:
        """The text without the secrets."""
        for secret in sorted(self._blots, key=len, reverse=True):
            text = text.replace(secret, BLOT)
        return text


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace").rstrip("\r\n")
    except OSError:
        return None
