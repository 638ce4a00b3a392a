"""The address of a broker -> the broker; its packages are imported only when it is used."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, urlsplit

from timeball.broker.interface import Broker
from timeball.clock import Clock
from timeball.domain.addresses import BROKER_FILES
from timeball.errors import SettingsError


def make_broker(url: str, namespace: str, clock: Clock) -> Broker:
    """The broker at an address, not yet connected; SettingsError if its package is not installed, or its URL cannot be used."""
    _check_files(url)
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


def _check_files(url: str) -> None:
    """The clients say that there is no such file; not which."""
    for name, path in parse_qsl(urlsplit(url).query):
        if name in BROKER_FILES and not os.access(path, os.R_OK):
            raise SettingsError(
                [f'TIMEBALL_BROKER_URL: {name} names the file "{path}", which cannot be read by this account']
            )
