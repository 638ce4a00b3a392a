"""The extras of this package, and what to install where a package of one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# By what is imported. Each extra of pyproject.toml brings the ones before it: client, cli, worker, server.
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
}


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Let the error of a missing package name the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        message = f'{error.name} is not installed: pip install "timeball[{extra}]"'
        raise MissingExtra(message, name=error.name) from None


class MissingExtra(ModuleNotFoundError):
    """A package is not installed that an extra of Timeball brings."""
