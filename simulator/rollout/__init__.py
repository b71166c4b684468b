"""Continuous batching, step by step: how many sequences run, and how much of the KV cache they hold."""
