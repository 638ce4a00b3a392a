"""The watcher: looks at an installation from outside, and tells what that cannot, because its nodes or its database are dead.

It only reads, so a role that may not write is enough, and it keeps in memory what an installation keeps in tables: its alerts
(`WatchedAlerts`) and their messages (`Outbox`). It remembers the channels and routes that it has read, so it can also tell that the
database is gone. A message is sent by the handler that sends it anywhere, `alert.deliver`; this module only decides when.

After each look it pings an address outside: good, or bad with the reason. While a fact is new it pings nothing, because it may pass by
itself. The service behind that address notices when the watcher is dead: the pings stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

from timeball.config.life_signs import WATCH, LifeSign
from timeball.current import Retry, Snooze
from timeball.domain.alert_messages import AlertMessage, SendOrder
from timeball.domain.alert_routes import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_RETRIES,
    SEND_WITHIN,
    AlertDeliveryEvent,
    AlertDeliveryId,
    AlertRoute,
    DeliveryLine,
    EarlierDelivery,
    LeaveOut,
    PlannedAlertDelivery,
    SendLater,
    SendNow,
    decide_delivery,
    plan_deliveries,
)
from timeball.domain.alerts import Alert, AlertEvent, AlertFact, AlertId, AlertTransition, format_alert_id
from timeball.domain.channels import AlertChannel
from timeball.domain.execution import ClaimedExecution
from timeball.domain.explain.diagnosis import alert_facts, unreachable
from timeball.domain.values.redaction import redact
from timeball.domain.values.text import clean_text, shorten_text
from timeball.domain.watch import Observation, WatchedAlerts, narrowed_routes
from timeball.engine.node import LONGEST_REST, Service, SharedTimer
from timeball.env import Env
from timeball.errors import TimeballError
from timeball.handlers.binding import HandlerRefused
from timeball.telemetry.events import (
    AlertDelivered,
    AlertNotDelivered,
    AlertOpened,
    AlertResolved,
    Emit,
    FactSeen,
    PingFailed,
)

if TYPE_CHECKING:
    from timeball.domain.webhook import WebhookAnswer

_LONGEST_REASON = 500
_PING_WITHIN = timedelta(seconds=10)

# Sends a body to an address with these headers, within this time. What goes wrong is an answer.
Post: TypeAlias = Callable[[str, Mapping[str, str], bytes, timedelta], Awaitable["WebhookAnswer"]]


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What a look has shown: the facts of now, whether or not they have lasted, and the alerts that are open."""

    at: datetime
    facts: Sequence[AlertFact]
    alerts: Sequence[Alert]


class Observer(Protocol):
    """Reads what a watcher looks at."""

    async def look(self) -> Observation:
        """What is so now; TimeballError if it cannot be read."""

    async def close(self) -> None:
        """Let go of the database; the next look connects anew."""


class Sender(Protocol):
    """Sends a message whose turn it is: `alert.deliver`."""

    async def __call__(self, delivery_id: AlertDeliveryId, channel: str, attempt: int) -> None:
        """Send it, or raise as the handler does."""


class Pinger:
    """Calls an address outside: good, or bad with the facts. Without an address it does nothing."""

    def __init__(self, url: str | None, post: Post) -> None:
        self._url = url
        self._post = post

    async def __call__(self, facts: Sequence[AlertFact]) -> str | None:
        """Ping, and return what went wrong with that, if anything did."""
        if self._url is None:
            return None
        body = "\n".join(fact.sentence for fact in facts) or "all is well"
        headers = {"User-Agent": "Timeball", "Content-Type": "text/plain; charset=utf-8"}
        url = failure_address(self._url) if facts else self._url
        answer = await self._post(url, headers, body.encode(), _PING_WITHIN)
        return None if answer.is_success else answer.error or f"it was answered {answer.status}"


def failure_address(url: str) -> str:
    """The address of a bad ping: with /fail behind the path."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/fail").geturl()


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """A message on its way. *run_at* is when it was due first, *next_at* when it is tried next."""

    id: AlertDeliveryId
    channel: str
    alert_id: AlertId
    event: AlertDeliveryEvent
    run_at: datetime
    next_at: datetime
    attempts: int = 0
    has_begun: bool = False
    is_heard: bool = False
    is_sent: bool = False
    is_over: bool = False
    is_sending: bool = False

    def begin(self) -> bool:
        """Note that it is being told; returns whether it may have arrived before."""
        may_have_arrived, self.is_heard, self.has_begun = self.is_heard, True, True
        return may_have_arrived

    def note_sent(self) -> None:
        """Its channel has taken it."""
        self.is_sent = self.is_heard = True

    def note_unheard(self) -> None:
        """The attempt that has begun did not reach the channel."""
        self.is_heard = self.is_sent

    def start_attempt(self) -> None:
        """Keep others from sending it meanwhile."""
        self.is_sending = True

    def end_attempt(self, *, next_at: datetime | None, has_failed: bool = False) -> None:
        """What becomes of it: it is tried again, or it is over."""
        self.is_sending = False
        self.attempts += has_failed
        self.is_over = next_at is None
        self.next_at = next_at or self.next_at


class Outbox:
    """The messages of a watcher, in their order: a log of deliveries in memory, as `AlertDeliveryStore` is one in the database.

    *own* are channels that the watcher has by itself. Of those of the installation it uses the *named* ones, or all if none is named.
    """

    def __init__(self, env: Env, own: Sequence[AlertChannel] = (), named: Sequence[str] = ()) -> None:
        self._env = env
        self._own = {channel.name: channel for channel in own}
        self._named = named
        self._channels: Mapping[str, AlertChannel] = self._own
        self._routes: Sequence[AlertRoute] = narrowed_routes((), (), named, list(self._own))
        self._alerts: dict[AlertId, Alert] = {}
        self._messages: list[_Message] = []

    def read(self, observation: Observation) -> None:
        """Remember the channels and routes of the installation."""
        self._channels = {**observation.channels, **self._own}
        self._routes = narrowed_routes(observation.routes, observation.channels, self._named, list(self._own))

    def note(self, transitions: Sequence[AlertTransition], alerts: Sequence[Alert], now: datetime) -> None:
        """Plan the messages of what has happened; *alerts* are all that are open."""
        for transition in transitions:
            if transition.event is AlertEvent.OPENED:
                self._forget(transition.alert.id)
            self._alerts[transition.alert.id] = transition.alert
        self._alerts |= {alert.id: alert for alert in alerts}
        earlier: dict[AlertId, list[EarlierDelivery]] = {}
        for message in self._messages:
            known = EarlierDelivery(channel=message.channel, event=message.event, run_at=message.run_at)
            earlier.setdefault(message.alert_id, []).append(known)
        for planned in plan_deliveries(transitions, self._routes, earlier, now):
            self._add(planned, now)
        self._trim()

    def due(self, now: datetime) -> list[_Message]:
        """The messages that are to be sent, or tried again."""
        return [one for one in self._messages if not one.is_over and not one.is_sending and one.next_at <= now]

    def _add(self, planned: PlannedAlertDelivery, now: datetime) -> None:
        assert planned.alert_id is not None
        run_at = planned.run_at or now
        message = _Message(
            id=AlertDeliveryId(self._env.new_id()),
            channel=planned.channel,
            alert_id=planned.alert_id,
            event=planned.event,
            run_at=run_at,
            next_at=run_at,
        )
        self._messages.append(message)

    def _forget(self, alert_id: AlertId) -> None:
        """What was said of an earlier life of an alert says nothing of this one."""
        self._messages = [one for one in self._messages if one.alert_id != alert_id]

    def _trim(self) -> None:
        unfinished = {one.alert_id for one in self._messages if not one.is_over}
        self._alerts = {
            id_: alert for id_, alert in self._alerts.items() if alert.resolved_at is None or id_ in unfinished
        }
        self._messages = [one for one in self._messages if one.alert_id in self._alerts]

    # the log of deliveries that `alert.deliver` works with

    async def begin(self, delivery_id: AlertDeliveryId) -> SendOrder | SendLater | LeaveOut:
        """What becomes of a message that is due. If it is to be sent, the reminder after it is planned, unless it was before."""
        message = self._find(delivery_id)
        channel = None if message is None else self._channels.get(message.channel)
        if message is None or channel is None:
            return LeaveOut("the channel was deleted")
        now, alert = self._env.clock.now(), self._alerts[message.alert_id]
        decision = decide_delivery(self._line_of(message, now), channel.name, alert, self._routes, now)
        if not isinstance(decision, SendNow):
            return decision
        if decision.repeat_at is not None and not message.has_begun:
            event = AlertDeliveryEvent.REMINDER
            reminder = PlannedAlertDelivery(
                channel=channel.name, alert_id=alert.id, event=event, run_at=decision.repeat_at
            )
            self._add(reminder, now)
        may_have_arrived = message.begin()
        what = AlertMessage(delivery_id=message.id, event=message.event, alert=alert, channel=channel.name, at=now)
        return SendOrder(channel=channel, message=what, may_have_arrived=may_have_arrived)

    def _line_of(self, message: _Message, now: datetime) -> DeliveryLine:
        place = self._messages.index(message)
        same = [
            (number, one)
            for number, one in enumerate(self._messages)
            if (one.alert_id, one.channel) == (message.alert_id, message.channel)
        ]
        before = [one for number, one in same if number < place]
        return DeliveryLine(
            event=message.event,
            is_sent=message.is_sent,
            was_heard=any(one.is_heard for one in before),
            is_overtaken=any(one.run_at <= now for number, one in same if number > place),
            must_wait=any(one.is_sending for one in before),
        )

    async def note_sent(self, delivery_id: AlertDeliveryId) -> None:
        """Note that a message was taken by its channel."""
        if (message := self._find(delivery_id)) is not None:
            message.note_sent()

    async def note_unheard(self, delivery_id: AlertDeliveryId) -> None:
        """Note that the attempt that has begun did not reach the channel, or was refused by it."""
        if (message := self._find(delivery_id)) is not None:
            message.note_unheard()

    async def use_secrets(self, claimed: ClaimedExecution, names: Sequence[str], *, is_bound: bool) -> bool:
        """Whether the message may use these secrets: those that are bound to hosts always, others if an administrator wrote the channel."""
        message = self._find(AlertDeliveryId(claimed.job_id))
        channel = None if message is None else self._channels.get(message.channel)
        return channel is not None and (is_bound or not channel.bound_secrets_only)

    def _find(self, delivery_id: AlertDeliveryId) -> _Message | None:
        return next((one for one in self._messages if one.id == delivery_id), None)


class Watcher(Service):
    """Looks, tells and pings, every few seconds. Nothing that it meets ends it."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        observer: Observer,
        alerts: WatchedAlerts,
        outbox: Outbox,
        send: Sender,
        ping: Callable[[Sequence[AlertFact]], Awaitable[str | None]],
        *,
        interval: timedelta,
        answer_within: timedelta,
        on_look: Callable[[WatchReport], None],
    ) -> None:
        super().__init__(env, emit)
        self._observer = observer
        self._alerts = alerts
        self._outbox = outbox
        self._send = send
        self._ping = ping
        self._interval = interval
        self._answer_within = answer_within
        self._on_look = on_look
        self._next_look = float("-inf")
        self._life_sign = LifeSign(WATCH)
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, timer: SharedTimer | None = None) -> None:
        """Watch until stopped. What is being sent then is cut off: it was not told, or it will be told again."""
        stopping = asyncio.ensure_future(self._stopped.wait())
        watching = asyncio.ensure_future(super().run(timer))
        try:
            # A look or a ping that is under way when it is stopped is not waited for.
            await asyncio.wait((stopping, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [stopping, watching, *self._sending]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._life_sign.remove()

    @property
    def installation(self) -> str:
        """What it watches."""
        return self._alerts.installation

    async def look_once(self) -> WatchReport:
        """Look, and ping what is seen, whether or not it lasts: for a watcher that remembers nothing. No channel is told."""
        report, _ = await self._look()
        self._on_look(report)
        await self._ping_facts(report.facts)
        return report

    async def tick(self) -> timedelta:
        if self.is_time(self._next_look):
            begun = self.env.clock.monotonic()
            # If it hangs, this instant passes: looking, pinging and the pause, each twice.
            self._life_sign.extend(begun + 2 * (self._answer_within + self._interval).total_seconds() + 60)
            self._next_look = begun + self._interval.total_seconds()
            known = {alert.fact.key for alert in (*self._alerts.pending, *self._alerts.open)}
            report, transitions = await self._look()
            self._log(report.facts, known, transitions)
            self._on_look(report)
            await self._ping_now()
        for message in self._outbox.due(self.env.clock.now()):
            self._begin(message)
        return LONGEST_REST

    async def _look(self) -> tuple[WatchReport, Sequence[AlertTransition]]:
        """Look, and let the alerts be those of what is seen."""
        try:
            async with asyncio.timeout(self._answer_within.total_seconds()):
                observation = await self._observer.look()
        except (TimeballError, OSError, TimeoutError) as error:
            now = self.env.clock.now()
            facts = alert_facts([unreachable(self._reason(error))])
            transitions = self._alerts.see_nothing(facts[0], now)
            await self._close_observer()
        else:
            now, facts = observation.evaluation.at, list(observation.evaluation.facts)
            self._outbox.read(observation)
            transitions = self._alerts.see(observation)
        self._outbox.note(transitions, self._alerts.open, self.env.clock.now())
        return WatchReport(now, facts, self._alerts.open), transitions

    def _reason(self, error: BaseException) -> str:
        words = str(error) or f"no answer within {self._answer_within.total_seconds():g} s"
        return shorten_text(str(redact(clean_text(" ".join(words.split())))), _LONGEST_REASON)

    async def _close_observer(self) -> None:
        with suppress(TimeballError, OSError, TimeoutError):
            async with asyncio.timeout(self._answer_within.total_seconds()):
                await self._observer.close()

    def _log(self, facts: Sequence[AlertFact], known: set[str], transitions: Sequence[AlertTransition]) -> None:
        for fact in facts:
            if fact.key not in known:
                self.emit(FactSeen(fact.kind, fact.sentence))
        for transition in transitions:
            alert, fact = format_alert_id(transition.alert.id), transition.alert.fact
            if transition.event is AlertEvent.OPENED:
                self.emit(AlertOpened(alert, fact.kind, fact.severity.value, fact.sentence))
            elif transition.event is AlertEvent.RESOLVED:
                self.emit(AlertResolved(alert, fact.kind))

    async def _ping_now(self) -> None:
        facts = [alert.fact for alert in self._alerts.open]
        if facts or not self._alerts.pending:
            await self._ping_facts(facts)

    async def _ping_facts(self, facts: Sequence[AlertFact]) -> None:
        error = await self._ping(facts)
        if error is not None:
            self.emit(PingFailed(error))

    # sending

    def _begin(self, message: _Message) -> None:
        message.start_attempt()
        task = asyncio.ensure_future(self._send_one(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_one(self, message: _Message) -> None:
        try:
            async with asyncio.timeout(SEND_WITHIN.total_seconds()):
                await self._send(message.id, message.channel, message.attempts + 1)
            message.end_attempt(next_at=None)
            if message.is_sent:
                told = format_alert_id(message.alert_id), message.channel, message.event.value
                self.emit(AlertDelivered(*told))
        except Snooze as later:
            message.end_attempt(next_at=self.env.clock.now() + later.delay)
        except (Exception, Retry) as error:
            self._after_failure(message, error)

    def _after_failure(self, message: _Message, error: BaseException) -> None:
        pause: timedelta | None = None
        # What was refused would be refused again.
        if not isinstance(error, HandlerRefused) and message.attempts < MAX_RETRIES:
            pause = min(FIRST_PAUSE * 2**message.attempts, LONGEST_PAUSE)
            if isinstance(error, Retry) and error.after is not None:
                pause = max(pause, error.after)
        message.end_attempt(next_at=None if pause is None else self.env.clock.now() + pause, has_failed=True)
        words = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        alert = format_alert_id(message.alert_id)
        self.emit(AlertNotDelivered(alert, message.channel, message.event.value, words, pause))
