"""A running node: its lease, its services, the scheduler's and the worker's parts, and the runners of handlers."""
