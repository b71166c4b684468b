"""OpenRLHF 0.11: a plan as flags of its trainer."""
