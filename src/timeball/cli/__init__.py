"""The command line: `timeball`."""
