"""Checkpoint files to named tensors; empty so far."""
