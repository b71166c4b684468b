"""Prices of single operators, by interpolation in measured tables. One file per kind of operator."""
