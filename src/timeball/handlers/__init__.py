"""Handlers by name, how payloads meet their parameters, and those that come in the box."""
