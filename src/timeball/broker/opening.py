"""The address of a broker -> the broker; its packages are imported only when it is used."""

from __future__ import annotations

from timeball.broker.interface import Broker
from timeball.clock import Clock
from timeball.errors import SettingsError


def make_broker(url: str, namespace: str, clock: Clock) -> Broker:
    """The broker at an address, not yet connected; SettingsError if its package is not installed."""
    try:
        if url.startswith("redis"):
            from timeball.broker.redis import RedisBroker

            return RedisBroker(url, namespace)
        from timeball.broker.rabbitmq import RabbitmqBroker

        return RabbitmqBroker(url, namespace, clock)
    except ImportError as error:
        extra = "redis" if url.startswith("redis") else "rabbitmq"
        problem = f'TIMEBALL_BROKER_URL is set, but {error.name} is not installed: pip install "timeball[{extra}]"'
        raise SettingsError([problem]) from None
