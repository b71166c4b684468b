"""Benchmarks: the protocol, the published tables and what we score on them."""
