"""The services of a scheduler node."""
