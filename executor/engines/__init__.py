"""Engines: what computes inside a worker. One narrow interface, several ways behind it."""
