"""The handlers in the box, each against a real counterpart on loopback."""
