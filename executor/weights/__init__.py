"""Weights on the move: what each rank holds, in whose naming, and how it becomes what another layout needs."""
