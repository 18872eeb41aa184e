"""Checkpoint files to named tensors, strictly: what is missing, extra or misshapen is an error.

Knows files, names and shapes; what a model is made of is other packages' business. A local
directory never causes a connection; a hub name goes through huggingface_hub, whose offline switch
and cache it keeps.
"""
