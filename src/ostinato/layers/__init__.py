"""Blocks used by two or more models.

Each block is a module that only holds parameters, and a function of tensors that does the work: a
fused operator replaces the function. Parameters are made without storage (device ``meta``) and
under fixed names; ``weights`` gives them their tensors. No block reads a device value, creates a
tensor from Python values, or knows that it is recorded.
"""
