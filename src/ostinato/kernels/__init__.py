"""Fused tensor operators, each beside the plain torch reference it must agree with.

Import the operators from their own packages (``from ostinato.kernels.norm import layer_norm``);
nothing is loaded or compiled here.
"""
