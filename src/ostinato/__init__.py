"""Ostinato removes host launch overhead from multimodal inference."""
