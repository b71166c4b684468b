"""Exports checked against the packages themselves: see ``check.py``."""
