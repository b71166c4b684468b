"""NeMo-RL 0.7: a plan as a recipe on top of its own GRPO configuration."""
