"""Joins vision encoders and language models."""
