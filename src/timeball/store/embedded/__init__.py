"""The PostgreSQL that comes in a wheel; `server.py` explains how processes share it, and what happens when one of them dies."""

from timeball.store.embedded.cluster import installed
from timeball.store.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "installed"]
