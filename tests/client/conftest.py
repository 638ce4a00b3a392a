"""A real API behind a socket, for the client to talk to."""

from tests.api.conftest import fresh_database, running_api

__all__ = ["fresh_database", "running_api"]
