"""Megatron-Core as a training engine. Everything here imports megatron lazily, through ``model.py`` and below."""
