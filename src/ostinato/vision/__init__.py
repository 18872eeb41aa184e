"""Vision encoders: contract, layouts, models."""
