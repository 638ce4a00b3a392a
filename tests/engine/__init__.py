"""The loops of a node, ticked by hand under the virtual clock, on a real store."""
