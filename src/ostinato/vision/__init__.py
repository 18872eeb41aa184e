"""Vision encoders: layout, packing and models; empty so far."""
