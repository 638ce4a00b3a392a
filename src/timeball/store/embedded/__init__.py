"""The PostgreSQL that comes in a wheel; `server.py` tells how it is shared, and what happens when something dies."""

from timeball.store.embedded.cluster import installed
from timeball.store.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "installed"]
