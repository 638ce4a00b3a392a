"""Pure logic: no server, no clock."""
