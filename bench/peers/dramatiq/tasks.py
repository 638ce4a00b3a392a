"""The program Dramatiq runs."""

import json
import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from marks import STARTED, mark

broker = RedisBroker(url=os.environ["REDIS_URL"], **json.loads(os.environ.get("BROKER_OPTIONS", "{}")))
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
