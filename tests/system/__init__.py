"""Real processes on a real PostgreSQL: killed, frozen, cut off; and then the books are checked."""
