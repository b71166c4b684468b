"""Saves a run, and what it does after a failure: clear away, plan again where devices are gone, load, resume."""
