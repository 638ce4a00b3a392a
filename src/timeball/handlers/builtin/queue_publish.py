"""`queue.publish`: publish a message to a RabbitMQ or Redis of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self
from weakref import WeakValueDictionary

import orjson
from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from timeball.current import RUNNING, current
from timeball.domain.scheduling.civil_time import format_instant
from timeball.errors import SettingsError, TimeballError
from timeball.handlers.binding import HandlerRefused, Payload
from timeball.handlers.builtin.egress import read_url
from timeball.handlers.builtin.secrets import JsonBody, SecretReference, SecretScope, SecretStore
from timeball.handlers.occurrence import occurrence_headers

if TYPE_CHECKING:
    from yarl import URL

_PORTS = {"amqp": 5672, "amqps": 5671, "redis": 6379, "rediss": 6379}
_SECONDS = 10.0
_MOST_CONNECTIONS = 32

Name = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class PublishPayload(Payload):
    """A message and where it goes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"url": "amqp://rabbit.example.com:5672/", "routing_key": "reports", "body": {"day": "2026-11-16"}}
            ]
        }
    )

    url: Annotated[str, StringConstraints(max_length=2_000)] | SecretReference = Field(
        description="amqp(s)://host:port/vhost or redis(s)://host:port/database; with a password, as a secret reference."
    )
    exchange: Name = Field(default="", description="RabbitMQ: the exchange; the default one leads to the queue itself.")
    routing_key: Name = Field(default="", description="RabbitMQ: the routing key; by the default exchange, a queue.")
    stream: Name | None = Field(default=None, description="Redis: the stream the message is added to.")
    body: JsonBody = Field(description="Text as it is, anything else as JSON; secret references in it are replaced.")

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | SecretReference) -> str | SecretReference:
        if isinstance(value, str):
            place = parse_destination(value)
            if place.url.password is not None:
                raise ValueError("the URL carries a password; keep the whole URL as a secret and name that")
        return value

    @model_validator(mode="after")
    def _check_goal(self) -> Self:
        if isinstance(self.url, str):
            check_destination(parse_destination(self.url), self)
        return self


class PublishFailed(TimeballError):
    """The server could not be reached, or could not take the message just now."""

    code = "publish_failed"


class PublishRejected(HandlerRefused):
    """The server does not take this message, or is not to be reached from here."""

    code = "publish_rejected"


@dataclass(frozen=True, slots=True)
class PublishDestination:
    """A server by its URL."""

    url: URL
    host: str
    port: int

    @property
    def is_redis(self) -> bool:
        return self.url.scheme.startswith("redis")

    def __str__(self) -> str:
        return f"{self.url.scheme}://{self.host}:{self.port}"


def parse_destination(text: str) -> PublishDestination:
    """Where a URL leads; ValueError, which never repeats it, if it is none of ours."""
    try:
        url = read_url(text)
        host, port = (url.raw_host or "").lower(), url.port
    except ValueError:
        raise ValueError("the URL cannot be read") from None
    if url.scheme not in _PORTS or not host:
        raise ValueError("the URL is not usable, expected amqp://, amqps://, redis:// or rediss:// and a host")
    if url.raw_query_string or url.raw_fragment:
        raise ValueError("the URL has options behind its path, which are not supported")
    return PublishDestination(url, host, port or _PORTS[url.scheme])


def check_destination(place: PublishDestination, payload: PublishPayload) -> None:
    """Refuse words for the other kind of server; ValueError."""
    if place.is_redis and (not payload.stream or payload.exchange or payload.routing_key):
        raise ValueError("for Redis, give stream, and neither exchange nor routing_key")
    if not place.is_redis and (payload.stream is not None or not (payload.exchange or payload.routing_key)):
        raise ValueError("for RabbitMQ, give exchange or routing_key or both, and no stream")


def read_allowed(entries: tuple[str, ...]) -> frozenset[tuple[str, int]]:
    """The administrator's list; SettingsError if an entry is no host:port."""
    allowed: set[tuple[str, int]] = set()
    for entry in entries:
        host, _, port = entry.lower().rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise SettingsError([f"TIMEBALL_QUEUE_ALLOW has {entry!r}, expected host:port"])
        allowed.add((host.strip("[]"), int(port)))
    return frozenset(allowed)


class QueuePublish:
    """Put a message on a RabbitMQ or Redis of the administrator's list."""

    def __init__(self, allowed: frozenset[tuple[str, int]], secrets: SecretStore) -> None:
        self._allowed = allowed
        self._secrets = secrets
        self._connections: dict[str, Any] = {}
        # One for each server: a slow server does not delay the others.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, payload: PublishPayload) -> dict[str, Any]:
        disclosure = await self._secrets.disclose(payload)
        place = self._place(payload, disclosure)
        disclosure.for_host(place.host)
        body = _encoded(disclosure.reveal_within(payload.body))
        publish = self._to_redis if place.is_redis else self._to_rabbitmq
        try:
            async with asyncio.timeout(_SECONDS):
                return await publish(place, payload, body)
        except TimeoutError:
            await self._forget(place)
            raise PublishFailed(f"{place} did not confirm the message within {_SECONDS:g} s") from None
        except _ConnectionUnusable as error:
            said = disclosure.redact(f"{place}: {error}")[:2_000]
            if error.is_for_good:
                # The connection is as good as before.
                raise PublishRejected(said) from None
            await self._forget(place)
            raise PublishFailed(said) from None

    async def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await _close(connection)

    def _place(self, payload: PublishPayload, disclosure: SecretScope) -> PublishDestination:
        url = disclosure.reveal(payload.url)
        try:
            place = parse_destination(url)
            check_destination(place, payload)
        except ValueError as error:
            raise PublishRejected(str(error)) from None
        disclosure.hide(place.url.password or "")
        if (place.host, place.port) not in self._allowed:
            raise PublishRejected(f"{place.host}:{place.port} is not among the servers allowed: TIMEBALL_QUEUE_ALLOW")
        return place

    async def _to_redis(self, place: PublishDestination, payload: PublishPayload, body: bytes) -> dict[str, Any]:
        try:
            from redis import exceptions
            from redis.asyncio import Redis
        except ImportError:
            raise PublishRejected('the redis package is not installed: pip install "timeball[redis]"') from None

        async def connect() -> Any:
            return Redis.from_url(str(place.url), socket_connect_timeout=_SECONDS, socket_timeout=_SECONDS)

        passing = (exceptions.BusyLoadingError, exceptions.OutOfMemoryError, exceptions.ReadOnlyError)
        fields: dict[Any, Any] = {
            "id": current.execution_id,
            "job": current.job_id,
            "body": body,
            **_occurrence_fields(),
        }
        try:
            redis = await self._connection(place, connect)
            number = await redis.xadd(payload.stream, fields)
        except (exceptions.AuthenticationError, exceptions.ResponseError) as error:
            raise _ConnectionUnusable(error, is_for_good=not isinstance(error, passing)) from None
        except (exceptions.RedisError, OSError) as error:
            raise _ConnectionUnusable(error, is_for_good=False) from None
        return {"stream": payload.stream, "id": number.decode()}

    async def _to_rabbitmq(self, place: PublishDestination, payload: PublishPayload, body: bytes) -> dict[str, Any]:
        try:
            import aio_pika
            from aio_pika import exceptions
        except ImportError:
            raise PublishRejected('the aio-pika package is not installed: pip install "timeball[rabbitmq]"') from None

        async def connect() -> Any:
            return await aio_pika.connect(str(place.url), timeout=_SECONDS)

        message = aio_pika.Message(
            body,
            message_id=current.execution_id,
            headers=dict(occurrence_headers(RUNNING.get().claimed)),
            content_type="text/plain" if isinstance(payload.body, str) else "application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            app_id="timeball",
        )
        try:
            connection = await self._connection(place, connect)
            # A channel for each message: the server closes it when a message is refused, and the others must not suffer.
            async with connection.channel(publisher_confirms=True, on_return_raises=True) as channel:
                exchange = (
                    await channel.get_exchange(payload.exchange) if payload.exchange else channel.default_exchange
                )
                await exchange.publish(message, routing_key=payload.routing_key, mandatory=True)
        except exceptions.PublishError:
            raise PublishRejected(
                f"{place}: no queue takes messages of exchange {payload.exchange!r} with key {payload.routing_key!r}"
            ) from None
        except (
            exceptions.ChannelClosed,
            exceptions.AuthenticationError,
            exceptions.ProbableAuthenticationError,
        ) as error:
            raise _ConnectionUnusable(error, is_for_good=True) from None
        except exceptions.CONNECTION_EXCEPTIONS as error:
            raise _ConnectionUnusable(error, is_for_good=False) from None
        return {"exchange": payload.exchange, "routing_key": payload.routing_key}

    async def _connection(self, place: PublishDestination, connect: Callable[[], Awaitable[Any]]) -> Any:
        key = str(place.url)
        async with self._locks.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or getattr(connection, "is_closed", False):
                if len(self._connections) >= _MOST_CONNECTIONS:
                    await self.close()
                connection = self._connections[key] = await connect()
            return connection

    async def _forget(self, place: PublishDestination) -> None:
        connection = self._connections.pop(str(place.url), None)
        if connection is not None:
            await _close(connection)


def _occurrence_fields() -> dict[str, str]:
    """What an entry of a stream tells of its occurrence, beside the ids."""
    claimed = RUNNING.get().claimed
    return {
        "job_name": claimed.job_name or "",
        "scheduled_for": format_instant(claimed.scheduled_for),
        "attempt": str(claimed.attempt),
        "fence": str(claimed.fence),
        "origin": claimed.origin,
    }


class _ConnectionUnusable(Exception):
    """What the server or the network said against a message."""

    def __init__(self, error: BaseException, *, is_for_good: bool) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.is_for_good = is_for_good


async def _close(connection: Any) -> None:
    close = getattr(connection, "aclose", None) or connection.close
    try:
        async with asyncio.timeout(1):
            await close()
    except Exception:
        # The connection is discarded because it does not work; an error of closing it says nothing new.
        return


def _encoded(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else orjson.dumps(body)
