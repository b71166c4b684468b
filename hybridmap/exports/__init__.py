"""Plans for the RL systems that people run: verl, NeMo-RL, OpenRLHF; and verl configurations read back."""
