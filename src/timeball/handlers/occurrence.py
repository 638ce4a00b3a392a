"""What code outside of this process is told of its occurrence: headers of a request or message, and environment variables.

`Timeball-Signature` proves the headers of a webhook. The key is derived from the signing secret, so that no signature of Standard Webhooks
can be passed off as one of these, or the other way round: both cover text that the other side chooses.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from string import ascii_letters, digits
from urllib.parse import quote

import orjson

from timeball.domain.execution import ClaimedExecution
from timeball.domain.scheduling.civil_time import format_instant
from timeball.domain.trace import TRACE_KEY, trace_words
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.handlers.signatures import signatures

HEADER_PREFIX = "timeball-"
# Lower case and sorted: a receiver signs the same lines, in whatever case and order the headers have arrived.
SIGNED_HEADERS = (
    "timeball-attempt",
    "timeball-execution",
    "timeball-fence",
    "timeball-job",
    "timeball-origin",
    "timeball-scheduled-for",
    "webhook-id",
    "webhook-timestamp",
)
_KEY_PURPOSE = b"timeball-signature"
# What is visible in ASCII, but for the percent sign.
_PLAIN = ascii_letters + digits + "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def occurrence_headers(claimed: ClaimedExecution) -> dict[str, str]:
    """The headers of a request. A name of a job may be any text: what is not visible ASCII is percent-encoded UTF-8."""
    name = claimed.job_name
    return {
        "Timeball-Scheduled-For": format_instant(claimed.scheduled_for),
        "Timeball-Job": format_job_id(claimed.job_id) if name is None else quote(name, safe=_PLAIN),
        "Timeball-Execution": format_execution_id(claimed.id),
        "Timeball-Attempt": str(claimed.attempt),
        "Timeball-Fence": str(claimed.fence),
        "Timeball-Origin": claimed.origin,
    }


def occurrence_environment(claimed: ClaimedExecution) -> dict[str, str]:
    """The environment variables of a command or an isolated handler. A job without a name has an empty one."""
    return {
        "TIMEBALL_EXECUTION_ID": format_execution_id(claimed.id),
        "TIMEBALL_JOB_ID": format_job_id(claimed.job_id),
        "TIMEBALL_JOB_NAME": claimed.job_name or "",
        "TIMEBALL_SCHEDULED_FOR": format_instant(claimed.scheduled_for),
        "TIMEBALL_ATTEMPT": str(claimed.attempt),
        "TIMEBALL_FENCE": str(claimed.fence),
        "TIMEBALL_ORIGIN": claimed.origin,
    }


def trace_headers(claimed: ClaimedExecution) -> dict[str, str]:
    """The trace that the execution belongs to, as headers of a request; empty if it belongs to none."""
    return {} if claimed.meta is None or TRACE_KEY not in claimed.meta else trace_words(orjson.loads(claimed.meta))


def trace_environment(claimed: ClaimedExecution) -> dict[str, str]:
    """The same as environment variables of a command: TRACEPARENT and TRACESTATE, as OpenTelemetry names them."""
    return {name.upper(): value for name, value in trace_headers(claimed).items()}


def sign_occurrence(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes) -> str:
    """The signatures of `SIGNED_HEADERS` and a body, one by each key."""
    values = {name.lower(): value for name, value in headers.items()}
    lines = "".join(f"{name}:{values[name]}\n" for name in SIGNED_HEADERS)
    derived = [hmac.digest(key, _KEY_PURPOSE, hashlib.sha256) for key in keys]
    return signatures(derived, f"{lines}\n".encode() + body)
