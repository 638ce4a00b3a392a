"""The program Dramatiq runs."""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from marks import STARTED, mark

heartbeat = {"heartbeat_timeout": int(os.environ["HEARTBEAT_MS"])} if "HEARTBEAT_MS" in os.environ else {}
broker = RedisBroker(url=os.environ["REDIS_URL"], **heartbeat)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


@dramatiq.actor
def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    time.sleep(seconds)
    mark(number)
