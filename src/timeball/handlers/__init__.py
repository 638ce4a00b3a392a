"""Handlers by name, how payloads are bound to their parameters, and the built-in ones."""
