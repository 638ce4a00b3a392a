"""What makes jobs easy to test: a clock you move by hand. Imported by nothing in Timeball itself."""

from timeball.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
