"""Tests of timeball.handlers."""
