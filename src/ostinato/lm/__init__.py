"""Language models: decoders over a paged cache, and the engine that serves them."""
