"""RL systems other than our own plans, simulated by the same prices: each is data about how it runs a job."""
