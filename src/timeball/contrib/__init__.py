"""Timeball in other frameworks."""
