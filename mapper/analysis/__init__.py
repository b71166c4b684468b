"""Questions about a plan: why, how sure, what would change it, what more GPUs buy, does it fit."""
