"""The program APScheduler runs: a scheduler is its own worker."""

import os

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from marks import schedules
from sqlalchemy import URL
from tasks import mark_tick, tick


def make(kind: type[BaseScheduler] = BackgroundScheduler) -> BaseScheduler:
    """A scheduler on PostgreSQL; what was due while nobody ran is run, however late."""
    url = URL.create("postgresql+psycopg", os.environ["PGUSER"], database=os.environ["PGDATABASE"])
    store = SQLAlchemyJobStore(url=url.update_query_dict({"host": os.environ["PGHOST"]}))
    executors = {"default": ThreadPoolExecutor(10)}
    defaults = {"misfire_grace_time": None, "coalesce": False, "max_instances": 3}
    return kind(jobstores={"default": store}, executors=executors, job_defaults=defaults, timezone="UTC")


def main() -> None:
    """Run until ended."""
    scheduler = make(BlockingScheduler)
    for number in schedules():
        scheduler.add_job(tick, "cron", second="*", id=f"tick-{number}", replace_existing=True)
    if schedules():
        scheduler.add_listener(mark_tick, EVENT_JOB_EXECUTED)
    scheduler.start()


if __name__ == "__main__":
    main()
