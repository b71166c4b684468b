"""Predicted against published: every row of the tables is predicted with its own plan, or listed with the reason."""
