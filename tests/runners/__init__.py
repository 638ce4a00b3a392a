"""Tests of timeball.runners."""
