"""The schedules of RQ's cron scheduler."""

from marks import schedules
from rq import cron
from tasks import noop

for number in schedules():
    cron.register(noop, queue_name="default", args=(number,), interval=1)
