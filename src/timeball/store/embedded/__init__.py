"""The PostgreSQL that comes in a wheel; `server.py` explains how processes share it, and what happens when one of them dies."""
