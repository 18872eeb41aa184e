"""Fused tensor operators, each beside its reference; no operator exists yet."""
