"""Known: what the hardware, the models and the workload are, and what was measured."""
