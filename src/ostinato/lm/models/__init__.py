"""Decoders: pure functions of tensors that do not know that they are recorded."""
