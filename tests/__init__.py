"""The tests of Timeball."""
