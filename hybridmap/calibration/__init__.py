"""From a run's log to a layer over the prices, and back: what a plan promised beside what the run does."""
