"""Signatures of what Timeball sends by HTTP, by Standard Webhooks: the secrets, and the three headers.

A receiver that knows the secret proves with them that a message is from us, is whole, and is not a copy that was kept and sent again.
While a secret is rotated a message has the signatures of the old and of the new one, and a receiver may know either.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import datetime

SECRET_PREFIX = "whsec_"  # noqa: S105 - how every secret begins
EXPECTED_SECRET = f"{SECRET_PREFIX} and 24 to 64 bytes as base64"
_NEW_SECRET_BYTES = 32


def new_signing_secret() -> str:
    """A fresh secret with 256 random bits, in the form in which it is given to the receiver."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(_NEW_SECRET_BYTES)).decode()


def parse_signing_secret(text: str) -> bytes:
    """The key in a secret; ValueError, which does not repeat it, if it is not one."""
    try:
        key = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError(f"is not a signing secret, expected {EXPECTED_SECRET}")
    return key


def signed_headers(keys: Iterable[bytes], message_id: str, sent_at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a message, signed by every key.

    *message_id* stays the same when a message is sent again, *sent_at* does not: receivers refuse what is some minutes old.
    """
    timestamp = int(sent_at.timestamp())
    content = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signatures(keys, content),
    }


def signatures(keys: Iterable[bytes], content: bytes) -> str:
    """What each key makes of some content, `v1,...`, separated by spaces."""
    return " ".join("v1," + b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
