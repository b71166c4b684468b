"""Should: which plan is best, and how surely."""
