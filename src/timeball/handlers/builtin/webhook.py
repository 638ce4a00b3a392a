"""`http.webhook`: send one HTTP request to another service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from timeball.current import RUNNING, Retry, current
from timeball.domain.values.text import clean_text
from timeball.env import Clock
from timeball.errors import TimeballError
from timeball.handlers.binding import HandlerRefused, Payload
from timeball.handlers.builtin.egress import EgressPolicy, EgressRefused, parse_endpoint, read_url
from timeball.handlers.builtin.secrets import JsonBody, SecretReference, SecretScope, SecretStore
from timeball.handlers.occurrence import HEADER_PREFIX, occurrence_headers, sign_occurrence, trace_headers
from timeball.handlers.signatures import parse_signing_secret, signed_headers

if TYPE_CHECKING:
    from timeball.domain.webhook import WebhookAnswer
    from timeball.handlers.builtin.http_client import HttpClient, HttpResponse, Resolve

MAX_BODY_BYTES = 64 * 1024
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
_LONGEST_URL = 4_000
_LONGEST_TIMEOUT_MS = 10 * 60 * 1000
_LONGEST_WAIT = timedelta(days=1)
_SHOWN_OF_BODY = 500
_SHOWN_HEADERS = ("content-type", "content-length", "date", "etag", "location", "retry-after", "x-request-id")
# Those the client or this handler sets: another value would contradict them, or smuggle a second request.
_RESERVED_HEADERS = frozenset(
    {
        *(
            "connection",
            "content-length",
            "expect",
            "host",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ),
        *("idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"),
    }
)
_RESERVED_PREFIXES = ("proxy-", HEADER_PREFIX)


def _check_header_value(value: str) -> str:
    if any((character < " " and character != "\t") or character == "\x7f" for character in value):
        raise ValueError("a header value contains a line break or another control character")
    return value


HeaderValue = Annotated[str, StringConstraints(max_length=8_000), AfterValidator(_check_header_value)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class WebhookPayload(Payload):
    """One HTTP request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://example.com/hooks/report", "method": "POST", "json": {"day": "2026-11-16"}}]
        }
    )

    url: Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_URL)] | SecretReference = Field(
        description="Where to; https, unless an administrator allows http. A secret reference, if the address itself is a secret.",
        examples=["https://example.com/hooks/report"],
    )
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[HeaderName, HeaderValue | SecretReference] = Field(
        default={},
        max_length=50,
        description="Headers to send; a value may be a secret reference.",
        examples=[{"Authorization": {"$secret": "BILLING_TOKEN"}}],
    )
    body: str | SecretReference | None = Field(default=None, description="The body as text; or use `json`.")
    json_: JsonBody = Field(
        default=None, alias="json", description="The body as JSON; secret references in it are replaced."
    )
    timeout: int = Field(
        default=15_000, ge=1, le=_LONGEST_TIMEOUT_MS, description="How long the request may take, in milliseconds."
    )
    signing_secret: SecretReference | tuple[SecretReference, ...] = Field(
        default=(), description="Sign by Standard Webhooks; during a rotation with the old and the new secret."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | SecretReference) -> str | SecretReference:
        if isinstance(value, str):
            try:
                parse_endpoint(read_url(value))
            except EgressRefused as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Any]) -> dict[str, Any]:
        names = [name.lower() for name in headers]
        taken = sorted({name for name in names if name in _RESERVED_HEADERS or name.startswith(_RESERVED_PREFIXES)})
        if taken:
            raise ValueError(f"{', '.join(taken)} cannot be chosen")
        if len(set(names)) < len(names):
            raise ValueError("a header is given twice, in different spellings")
        return headers

    @model_validator(mode="after")
    def _check_body(self) -> Self:
        if self.body is not None and self.json_ is not None:
            raise ValueError("body and json are both given, expected one of them")
        return self


class WebhookFailed(TimeballError):
    """The request was not answered, or the server could not serve it just now.

    *may_have_arrived*: the server may have taken the request all the same.
    """

    code = "webhook_failed"

    def __init__(self, message: str, *, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


def host_of(payload: str) -> str | None:
    """The host that a stored payload points to; None if it cannot be read, which the handler will say better."""
    try:
        return urlsplit(str(orjson.loads(payload)["url"])).hostname
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class WebhookRejected(HandlerRefused):
    """The server does not want this request; it would not want it later either."""

    code = "webhook_rejected"


class Webhook:
    """Send one HTTP request, and keep the answer."""

    def __init__(
        self,
        egress: EgressPolicy,
        secrets: SecretStore,
        clock: Clock,
        *,
        signing_secrets: Iterable[str] = (),
        resolve: Resolve | None = None,
    ) -> None:
        self._egress = egress
        self._secrets = secrets
        self._clock = clock
        self._signing_secrets = tuple(SecretReference.model_validate({"$secret": name}) for name in signing_secrets)
        self._resolve = resolve
        self._client: HttpClient | None = None

    async def __call__(self, payload: WebhookPayload) -> dict[str, Any]:
        return await self.send(payload, current.execution_id)

    async def send(self, payload: WebhookPayload, message_id: str) -> dict[str, Any]:
        """Send the request. *message_id* is what the server knows it by when it is sent again."""
        disclosure = await self._secrets.disclose(payload)
        request = _WebhookRequest(payload, disclosure)
        disclosure.for_host(request.url.host)
        body = _body_of(payload, disclosure)
        headers = self._headers(payload, body or b"", disclosure, message_id)
        answer = await self._send(request, headers, body, disclosure)
        reply = _WebhookReply(request, answer, disclosure)
        if 200 <= answer.status < 300:
            return reply.result()
        if answer.status == 429 or answer.status >= 500:
            raise self._retry(reply)
        raise WebhookRejected(reply.refusal())

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout: timedelta) -> WebhookAnswer:
        """Send a message that is not of an execution. Whatever goes wrong is an answer."""
        # Here and not above: a worker has no use for it.
        from timeball.domain.webhook import WebhookAnswer

        client = self._open()
        from aiohttp import ClientError

        try:
            answer = await client.send("POST", read_url(url), headers, body, timeout.total_seconds(), _SHOWN_OF_BODY)
        except TimeoutError:
            return WebhookAnswer(error=f"no answer within {timeout.total_seconds():g} s")
        except EgressRefused as error:
            return WebhookAnswer(error=str(error))
        except (ClientError, OSError, ValueError) as error:
            # Without its text where that may hold the address, in which many services want their tokens.
            what = str(error) if isinstance(error, OSError) else ""
            return WebhookAnswer(error=": ".join(filter(None, (type(error).__name__, what))))
        retry_after = self._retry_after(answer.headers.get("retry-after"))
        if 200 <= answer.status < 300:
            return WebhookAnswer(status=answer.status)
        words = " ".join(_decoded(answer).split())[:_SHOWN_OF_BODY]
        return WebhookAnswer(status=answer.status, error=clean_text(words) or None, retry_after=retry_after)

    async def close(self) -> None:
        """Close the connections that are kept."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _open(self) -> HttpClient:
        if self._client is None:
            # Here and not above: a worker that sends no webhooks has no use for what this brings into memory.
            from timeball.handlers.builtin.http_client import HttpClient

            self._client = HttpClient(self._egress, self._resolve)
        return self._client

    async def _send(
        self, request: _WebhookRequest, headers: Mapping[str, str], body: bytes | None, disclosure: SecretScope
    ) -> HttpResponse:
        client, payload = self._open(), request.payload
        from aiohttp import ClientConnectorError, ClientError

        keep = MAX_BODY_BYTES + disclosure.longest
        try:
            return await client.send(payload.method, request.url, headers, body, payload.timeout / 1000, keep)
        except TimeoutError:
            words = f"{request.shown} was not answered within {payload.timeout} ms"
            raise WebhookFailed(words, may_have_arrived=True) from None
        except (ClientError, OSError) as error:
            what = disclosure.redact(f"{type(error).__name__}: {error}")
            is_connected = not isinstance(error, ClientConnectorError)
            raise WebhookFailed(f"{request.shown} failed: {what}", may_have_arrived=is_connected) from None

    def _headers(
        self, payload: WebhookPayload, body: bytes, disclosure: SecretScope, message_id: str
    ) -> dict[str, str]:
        headers = {"User-Agent": "Timeball", "Accept": "*/*", "Accept-Encoding": "identity"}
        if payload.json_ is not None:
            headers["Content-Type"] = "application/json"
        elif payload.body is not None:
            headers["Content-Type"] = "text/plain; charset=utf-8"
        chosen = {name.lower() for name in payload.headers}
        headers = {name: value for name, value in headers.items() if name.lower() not in chosen}
        for name, value in payload.headers.items():
            headers[name] = _checked(name, disclosure.reveal(value))
        headers["Idempotency-Key"] = message_id
        claimed = RUNNING.get().claimed
        told = occurrence_headers(claimed)
        # A payload that names headers of a trace has its own.
        traced = {} if _TRACE_HEADERS & chosen else trace_headers(claimed)
        return headers | traced | told | self._signatures(payload, told, body, disclosure, message_id)

    def _signatures(
        self, payload: WebhookPayload, told: Mapping[str, str], body: bytes, disclosure: SecretScope, message_id: str
    ) -> dict[str, str]:
        """By Standard Webhooks, which cover the body alone; and of what the headers tell, with the body."""
        chosen = payload.signing_secret
        references = (chosen,) if isinstance(chosen, SecretReference) else chosen or self._signing_secrets
        if not references:
            return {}
        keys = [_signing_key(reference, disclosure) for reference in references]
        message = signed_headers(keys, message_id, self._clock.now(), body)
        return message | {"Timeball-Signature": sign_occurrence(keys, {**told, **message}, body)}

    def _retry(self, reply: _WebhookReply) -> BaseException:
        after = self._retry_after(reply.answer.headers.get("retry-after"))
        failed = WebhookFailed(reply.refusal())
        if after is None:
            return failed
        word = Retry(str(failed), after=after)
        word.__cause__ = failed
        return word

    def _retry_after(self, text: str | None) -> timedelta | None:
        """The server's Retry-After as a span, at most a day: it may be seconds or an instant."""
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,9}", text.strip()):
            return min(timedelta(seconds=int(text)), _LONGEST_WAIT)
        try:
            instant = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
        return min(max(aware - self._clock.now(), timedelta(0)), _LONGEST_WAIT)


class _WebhookRequest:
    """Where a request goes, and how it is called in an error."""

    def __init__(self, payload: WebhookPayload, disclosure: SecretScope) -> None:
        self.payload = payload
        if isinstance(payload.url, str):
            self.url = read_url(payload.url)
            # Without the query, in which many services want their tokens.
            self.shown = f"{payload.method} {self.url.origin()}{self.url.raw_path}"[:500]
            return
        text = disclosure.reveal(payload.url)
        try:
            # Not from the cache of `read_url`, which would keep the secret.
            self.url = read_url.__wrapped__(text[: _LONGEST_URL + 1])
            if len(text) > _LONGEST_URL:
                raise ValueError("too long")
            parse_endpoint(self.url)
        except (EgressRefused, ValueError):
            # What is wrong with it is not said: it would tell a part of the secret.
            raise HandlerRefused(
                f"secret {payload.url.name} is not an address, expected one such as https://example.com/hooks/report"
            ) from None
        # An answer may repeat the path alone, which is where the secret is.
        disclosure.hide(self.url.raw_path_qs)
        self.shown = f"{payload.method} {self.url.origin()} (the address is the secret {payload.url.name})"


class _WebhookReply:
    """An answer in words that may be stored."""

    def __init__(self, request: _WebhookRequest, answer: HttpResponse, disclosure: SecretScope) -> None:
        self.answer = answer
        self._request = request
        self._disclosure = disclosure
        self._text = _redacted(answer, disclosure)

    def result(self) -> dict[str, Any]:
        body, is_cut = _shortened(self._text)
        headers = {name: self.answer.headers[name] for name in _SHOWN_HEADERS if name in self.answer.headers}
        return {
            "status": self.answer.status,
            "headers": {name: self._disclosure.redact(value)[:1_000] for name, value in headers.items()},
            "body": body,
            "truncated": is_cut or not self.answer.is_whole,
        }

    def refusal(self) -> str:
        answer = self.answer
        excerpt = " ".join(self._text[:_SHOWN_OF_BODY].split())
        reason = self._disclosure.redact(answer.reason)[:100]
        words = f"{self._request.shown} was answered {answer.status} {reason}".rstrip()
        if 300 <= answer.status < 400:
            where = self._disclosure.redact(answer.headers.get("location", "elsewhere"))[:_SHOWN_OF_BODY]
            words += f"; redirects are not followed (it leads to {where})"
        return words + (f": {excerpt}" if excerpt else "")


def _signing_key(reference: SecretReference, disclosure: SecretScope) -> bytes:
    try:
        return parse_signing_secret(disclosure.reveal(reference))
    except ValueError as error:
        raise HandlerRefused(f"secret {reference.name} {error}") from None


def _body_of(payload: WebhookPayload, disclosure: SecretScope) -> bytes | None:
    if payload.json_ is not None:
        return orjson.dumps(disclosure.reveal_within(payload.json_))
    return None if payload.body is None else disclosure.reveal(payload.body).encode()


def _checked(name: str, value: str) -> str:
    """A secret may hold anything; as a header it must not end the line."""
    try:
        return _check_header_value(value)
    except ValueError as error:
        raise HandlerRefused(f"header {name}: {error}") from None


def _redacted(answer: HttpResponse, disclosure: SecretScope) -> str:
    text = disclosure.redact(_decoded(answer))
    if answer.is_whole or not disclosure.longest:
        return text
    # Where reading stopped, the beginning of a secret may stand, too little of it to be recognised.
    return text[: -disclosure.longest]


def _decoded(answer: HttpResponse) -> str:
    try:
        return answer.body.decode(answer.charset, "replace")
    except LookupError:
        return answer.body.decode("utf-8", "replace")


def _shortened(text: str) -> tuple[str, bool]:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_BODY_BYTES:
        return text, False
    return encoded[:MAX_BODY_BYTES].decode("utf-8", "ignore"), True
