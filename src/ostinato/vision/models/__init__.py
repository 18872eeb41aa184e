"""One short file per vision tower, on shared layers. A model does not know that it is recorded."""
