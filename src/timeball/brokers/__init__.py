"""Brokers carry tickets to workers; a ticket may be lost, doubled or reordered, the truth stays in PostgreSQL."""
