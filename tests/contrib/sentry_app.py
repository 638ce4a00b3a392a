"""A program with Sentry and OpenTelemetry, as an isolated child imports it."""

from __future__ import annotations

import os

import sentry_sdk

from timeball import Timeball, current
from timeball.contrib import otel, sentry

sentry_sdk.init(dsn=os.environ.get("SENTRY_APP_DSN"), auto_enabling_integrations=False, shutdown_timeout=0)
tb = Timeball()
otel.instrument(tb)
sentry.instrument(tb)


@tb.handler(name="app:fail_in_child", isolate=True, retries=1, backoff="1ms")
def fail_in_child() -> None:
    sentry_sdk.set_tag("pid", str(os.getpid()))
    raise LookupError(f"attempt {current.attempt}")
