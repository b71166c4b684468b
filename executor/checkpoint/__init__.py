"""Checkpoints of a run: whole or not there, and readable by any plan of the same run."""
