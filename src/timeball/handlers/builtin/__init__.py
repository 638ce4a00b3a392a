"""The built-in handlers; `handlers.catalogue` makes them from their settings."""
