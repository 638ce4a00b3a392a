"""Outgoing webhooks: the housekeeping scheduler records which events go to which webhook, and sends them.

Deliveries are not executions. An execution lets others of its limit go while it waits for a retry, so the order of the events of one
subject would be lost; it would be an event, a row of the history and a line of every count itself; and a worker, in which the code of
programs runs, would have to read the secrets. What they share with executions is the way in which a process that dies is followed by
another: a row says what is to be done, and until when a process has it.

Where there is no webhook nothing here costs a statement: the one by which housekeepers look for operations tells whether there is one.
A slow or dead address has few messages on their way at a time, so it holds up neither other webhooks nor this process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from timeball.domain.webhook import (
    DELIVERIES_KEPT_FOR,
    SEND_TIMEOUT,
    OutgoingMessage,
    SentMessage,
    WebhookAnswer,
    WebhookId,
)
from timeball.engine.node import AT_ONCE, LONGEST_REST, Service, SharedTimer, Signal
from timeball.env import Env
from timeball.handlers.signatures import parse_signing_secret, signed_headers
from timeball.telemetry.events import Emit, RecordsTrimmed, WebhookDisabled

if TYPE_CHECKING:
    from timeball.domain.wakeup import Wakeup
    from timeball.store.store import Store
    from timeball.store.webhooks import DisabledWebhook

# Messages on their way to one webhook, and to all of them.
_EACH = 8
_ALL = 64
_TRIM_SECONDS = 3_600.0
_USER_AGENT = "Timeball"


class MessagePoster(Protocol):
    """Sends a body to an address, and says what became of it. Every failure is an answer; nothing is raised."""

    async def __call__(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout: timedelta
    ) -> WebhookAnswer: ...


class WebhookRecorder(Service):
    """Makes deliveries of what has happened since the last round, in the order in which it happened.

    The position in the changes moves in the same transaction, so this may die at any point, and another process goes on there.
    """

    def __init__(self, env: Env, emit: Emit, store: Store, is_housekeeper: Callable[[], bool]) -> None:
        super().__init__(env, emit)
        self._store = store
        self._is_housekeeper = is_housekeeper
        self._next_trim = float("-inf")
        self._has_webhooks = False
        # Sent when there may be something to send.
        self.recorded = Signal()

    @property
    def may_send(self) -> bool:
        """Whether this process sends what is due, and there may be something."""
        return self._has_webhooks and self._is_housekeeper()

    def notice(self, *, has_webhooks: bool) -> None:
        """There are webhooks, or none, as another statement has told."""
        if has_webhooks and not self._has_webhooks:
            self._has_webhooks = True
            self.wake()

    def on_wakeup(self, wakeup: Wakeup) -> None:
        if wakeup.webhooks_changed:
            self.notice(has_webhooks=True)

    async def tick(self) -> timedelta:
        if not self.may_send:
            return LONGEST_REST
        recorded = await self._store.webhooks.record_changes()
        self._has_webhooks = recorded.has_webhooks
        report_disabled(self.emit, recorded.disabled)
        if recorded.added:
            self.recorded.send()
        if recorded.has_more:
            return AT_ONCE
        await self._trim()
        return LONGEST_REST

    async def _trim(self) -> None:
        now = self.env.clock.monotonic()
        if now < self._next_trim:
            return
        number = await self._store.webhooks.trim(self.env.clock.now() - DELIVERIES_KEPT_FOR)
        if number:
            self.emit(RecordsTrimmed("webhook_delivery", number))
        self._next_trim = now + _TRIM_SECONDS


class WebhookSender(Service):
    """Sends what is due, some messages at a time, and writes down what the addresses answered.

    A message is claimed before it is sent. If this process dies, the claim ends after half a minute, and the message is sent again, with
    the same id.
    """

    def __init__(self, env: Env, emit: Emit, store: Store, post: MessagePoster, recorder: WebhookRecorder) -> None:
        super().__init__(env, emit)
        self._store = store
        self._post = post
        self._recorder = recorder
        self._on_their_way: dict[asyncio.Task[None], WebhookId] = {}
        self._sent: list[SentMessage] = []
        recorder.recorded.subscribe(self.wake)

    @property
    def on_their_way(self) -> int:
        """The number of messages that are being sent."""
        return len(self._on_their_way)

    def on_wakeup(self, wakeup: Wakeup) -> None:
        if wakeup.webhooks_changed:
            self.wake()

    async def run(self, timer: SharedTimer | None = None) -> None:
        try:
            await super().run(timer)
        finally:
            for task in self._on_their_way:
                task.cancel()

    async def tick(self) -> timedelta:
        if self._sent:
            await self._record()
        if not self._recorder.may_send or len(self._on_their_way) >= _ALL:
            return LONGEST_REST
        messages = await self._store.webhooks.claim(_EACH, Counter(self._on_their_way.values()))
        for message in messages:
            task = asyncio.create_task(self._send(message))
            self._on_their_way[task] = message.webhook_id
            task.add_done_callback(self._on_their_way.pop)
        return LONGEST_REST

    async def _record(self) -> None:
        sent = self._sent[:]
        disabled = await self._store.webhooks.record_attempts(sent)
        del self._sent[: len(sent)]
        report_disabled(self.emit, disabled)

    async def _send(self, message: OutgoingMessage) -> None:
        began = self.env.clock.monotonic()
        try:
            answer = await self._answer(message)
        except Exception as error:
            # An attempt like any other: it is shown, and tried again.
            answer = WebhookAnswer(error=f"the message could not be sent: {type(error).__name__}")
        took = timedelta(seconds=self.env.clock.monotonic() - began)
        self._sent.append(SentMessage(message, answer, took))
        self.wake()

    async def _answer(self, message: OutgoingMessage) -> WebhookAnswer:
        keys = [parse_signing_secret(secret) for secret in message.secrets]
        headers = {
            "User-Agent": _USER_AGENT,
            "Content-Type": message.content_type,
            **signed_headers(keys, message.message_id, self.env.clock.now(), message.body),
        }
        return await self._post(message.url, headers, message.body, SEND_TIMEOUT)


def report_disabled(emit: Emit, webhooks: Sequence[DisabledWebhook]) -> None:
    """Tell of webhooks that disabled themselves."""
    for webhook in webhooks:
        emit(WebhookDisabled(webhook.id, webhook.reason))
