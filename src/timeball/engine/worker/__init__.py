"""The services of a worker node."""
