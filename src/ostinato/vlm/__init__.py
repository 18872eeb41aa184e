"""Joins vision encoders and language models; empty so far."""
