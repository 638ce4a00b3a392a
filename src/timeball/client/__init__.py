"""The HTTP API from Python: `Client` for programs that wait, `AsyncClient` for coroutines."""

from timeball.config.environment import explain_missing_extra

with explain_missing_extra():
    from timeball.client.clients import AsyncClient, Client
    from timeball.client.requests import Page
    from timeball.client.transport import Event

__all__ = ["AsyncClient", "Client", "Event", "Page"]
