"""Language models: cache, scheduler, prefill and decode; empty so far."""
