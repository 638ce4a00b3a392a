"""A real API behind a socket for the client."""

from tests.api.conftest import fresh_database, running_api

__all__ = ["fresh_database", "running_api"]
