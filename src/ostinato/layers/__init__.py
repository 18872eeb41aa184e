"""Blocks that two or more models share; empty so far."""
