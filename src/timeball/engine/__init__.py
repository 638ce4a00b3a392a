"""The loops of a running node, one file each."""
