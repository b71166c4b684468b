"""Programs of somebody else's, run where they reach nothing and do not last."""
