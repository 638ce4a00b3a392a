"""Connections to PostgreSQL, named statements, and rows as domain values."""
