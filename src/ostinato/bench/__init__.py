"""What users run to measure; empty so far."""
