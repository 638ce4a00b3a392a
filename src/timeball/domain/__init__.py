"""Pure values and decisions: no I/O, no event loop, no clock, no randomness."""
