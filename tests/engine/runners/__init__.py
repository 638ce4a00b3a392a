"""Tests of timeball.engine.runners."""
