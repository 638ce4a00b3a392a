"""A file for each resource: its routes and its serialiser; the bodies are in api.models."""
