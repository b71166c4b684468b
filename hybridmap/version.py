"""The version of hybridmap: what files that it writes say of their maker."""

__version__ = "0.1.0"
