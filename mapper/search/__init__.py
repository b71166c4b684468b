"""From a request to the best plan: a first choice, pruning, the solver, the place of pools on GPUs."""
