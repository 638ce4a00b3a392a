"""The HTTP API from Python: `Client` for programs that wait, `AsyncClient` for coroutines."""

from timeball.client.calls import Page
from timeball.client.faces import AsyncClient, Client
from timeball.client.streams import Event

__all__ = ["AsyncClient", "Client", "Event", "Page"]
