"""Logs of runs as verl, NeMo-RL, OpenRLHF, slime and hybridmap write them, read without any change to those systems."""
