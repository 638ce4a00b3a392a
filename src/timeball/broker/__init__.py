"""How due work reaches workers: tickets, which may be lost, doubled or reordered. The truth stays in PostgreSQL."""
