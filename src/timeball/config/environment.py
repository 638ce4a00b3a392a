"""What the machine gives a process: the installed extras of this package, and the number of files it may open."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The extra that brings a package. Each extra of pyproject.toml includes the ones before it: client, cli, worker, server.
EXTRAS = {
    "httpx": "client",
    "rich": "cli",
    "typer": "cli",
    "aiohttp": "worker",
    "aiosmtplib": "worker",
    "prometheus_client": "worker",
    "structlog": "worker",
    "fastapi": "server",
    "jinja2": "server",
    "markupsafe": "server",
    "starlette": "server",
    "uvicorn": "server",
    "holidays": "holidays",
    "icalendar": "ics",
    "sentry_sdk": "sentry",
    "opentelemetry": "otel",
}


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Name the extra to install in the error about a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        message = f'{error.name} is not installed: pip install "timeball[{extra}]"'
        raise MissingExtra(message, name=error.name) from None


class MissingExtra(ModuleNotFoundError):
    """A package of an extra of Timeball is not installed."""


# A higher limit slows down programs that close every file descriptor they could have.
_MAX_FILE_LIMIT = 65_536


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the system allows.

    The soft limit is mostly 1,024. Each connection and each pipe is a file.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def file_limit() -> int:
    """How many files this process may have open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft


def resident_memory() -> int:
    """How much of the machine's memory this process keeps, in bytes; at its peak, where the present cannot be read."""
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def is_out_of_files(error: BaseException) -> bool:
    """Whether an error or one of its causes says that no more files can be opened, by this process or by the system."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        # By its type: an error of a handler may lie about its __class__.
        if issubclass(type(cause), OSError) and getattr(cause, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
