"""Logs of runs as verl, NeMo-RL, slime and hybridmap write them, read without any change to those systems."""
