"""Events become signals for people."""
