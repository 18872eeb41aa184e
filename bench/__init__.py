"""Benchmarks of this repository: one file per question, peers beside ours, results as JSON."""
