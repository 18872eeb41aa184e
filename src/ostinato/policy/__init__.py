"""Robot policies; empty so far."""
