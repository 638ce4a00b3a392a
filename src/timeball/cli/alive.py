"""`timeball alive`: whether what should run on this machine does; for the health checks of containers."""

from __future__ import annotations

import asyncio
import platform
from ipaddress import ip_address
from urllib.error import URLError
from urllib.request import urlopen

from timeball.domain.node import NodeKind
from timeball.env import Env
from timeball.errors import InvalidInput, StoreError
from timeball.settings import Settings, load_settings
from timeball.store.database import Database
from timeball.store.hinter import Hinter
from timeball.store.nodes import Nodes

_KINDS = ("api", *(kind.value for kind in NodeKind))
_SECONDS = 5.0


def is_alive(kind: str | None) -> bool:
    """Whether a node of this kind on this machine holds its lease, or the API answers; of any kind, if none is named."""
    if kind is not None and kind not in _KINDS:
        raise InvalidInput(f"{kind!r} is nothing that runs; expected {', '.join(_KINDS)}", field="kind")
    settings = load_settings()
    if kind == "api":
        return _api_answers(settings)
    kinds = list(NodeKind) if kind is None else [NodeKind(kind)]
    return asyncio.run(_node_lives(settings, kinds)) or (kind is None and _api_answers(settings))


def _api_answers(settings: Settings) -> bool:
    try:
        with urlopen(
            f"http://{_asked_host(settings.host)}:{settings.port}/api/v1/health/ready", timeout=_SECONDS
        ) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _asked_host(host: str) -> str:
    """Where to ask what listens there: everywhere is also on loopback."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return "[::1]" if address.is_unspecified else f"[{host}]"
    return "127.0.0.1" if address.is_unspecified else host


async def _node_lives(settings: Settings, kinds: list[NodeKind]) -> bool:
    if settings.database_url is None:
        raise InvalidInput("there is no database to ask", hint="set TIMEBALL_DATABASE_URL")
    database = Database(settings.database_url, Env(), pool_size=2, behind_pgbouncer=settings.behind_pgbouncer)
    try:
        async with asyncio.timeout(_SECONDS):
            await database.open()
            return await Nodes(database, Hinter(database)).is_alive(platform.node(), kinds)
    except (StoreError, TimeoutError):
        # A node without its database lives until its lease has run out, but nobody can know that.
        return False
    finally:
        await database.close()
