"""slime 0.3: a plan as arguments of its trainer, and a run of it as a plan."""
