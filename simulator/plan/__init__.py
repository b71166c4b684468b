"""The vocabulary of plans: dataflows, layouts, groups, ``Plan`` (the intention) and ``Timeline`` (the outcome)."""
