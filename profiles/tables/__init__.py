"""Measured tables as files: how they are written and checked, which sizes to measure, how well they interpolate."""
