"""How far the estimate was from the run: the same plan, predicted and measured, side by side."""
