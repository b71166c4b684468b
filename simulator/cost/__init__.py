"""Prices: what a call costs in time and a role in memory. Pure functions on arrays; the only source of cost."""
