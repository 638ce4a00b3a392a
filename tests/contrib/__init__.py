"""Timeball inside of other frameworks."""
